"""`penstock report`, `results`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from penstock_cli.job import options


def report(job: options.JobName, as_json: options.JsonOption = False, state: options.StateOption = None) -> None:
    """Show what became of a job.

    Exit status as for `run`: 0 all succeeded, 3 with dead letters,
    1 not completed.
    """
    import orjson

    from penstock_cli.connect import books
    from penstock_cli.show import report as reports
    from penstock_cli.show.terminal import console as make_console
    from penstock_cli.show.text import argument
    from penstock_cli.watching.all_alike import advice

    with books(state) as ledger:
        found = ledger.jobs.get(job)
        figures = reports.build(
            found,
            ledger.outcomes.counts(found.job_id),
            stats=ledger.stats(found),
            seconds=ledger.seconds(found),
            made_with=ledger.made_with(found),
            moves=ledger.moves(found),
        )
        figures = replace(figures, advice=advice(ledger, found, figures))
        if as_json:
            typer.echo(orjson.dumps(figures.to_json()).decode())
        else:
            command = f"penstock dlq list {argument(found.job_key)}{ledger.option()}"
            reports.show(figures, make_console(), dlq_command=command, advice=figures.advice)
    raise typer.Exit(figures.exit_status)


def results(
    job: options.JobName,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="A file, s3://bucket/key, or - for standard output."),
    ] = None,
    output_format: options.OutputFormat = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Append to FILE what has come since the last time, while the job runs.")
    ] = False,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="CURSOR",
            help="What was stored after that, in that order: start, or the cursor that is printed then.",
        ),
    ] = None,
    escape_formulas: options.EscapeFormulas = False,
    into: options.Into = None,
    table: options.TableOrInto = None,
    into_id: options.IntoId = "id",
    state: options.StateOption = None,
) -> None:
    """Write the results so far: as OpenAI Batch output lines, as a table in a file, or into a database."""
    from penstock_cli.connect import books
    from penstock_cli.files import STDOUT
    from penstock_cli.result_forms import Asked, write

    asked = Asked(output, output_format, partial, after, escape_formulas, into, table, into_id)
    with books(state) as ledger:
        said = write(ledger, ledger.jobs.get(job), asked)
    typer.echo(said, err=output == STDOUT)
