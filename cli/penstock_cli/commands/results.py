"""`penstock report`, `results`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock_cli.errors import UsageProblem
from penstock_cli.job import options


def report(
    job: options.JobName,
    as_json: options.JsonOption = False,
    form: Annotated[
        str,
        typer.Option(
            "--format", metavar="F", help="text, json, markdown or html; by default as FILE ends."
        ),
    ] = "",
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="A file, s3://bucket/key, or - for standard output.",
        ),
    ] = None,
    state: options.StateOption = None,
) -> None:
    """Show what became of a job.

    Exit status as for `run`: 0 all succeeded, 3 with dead letters,
    1 not completed. As HTML it is one page with charts, without scripts.
    """
    from penstock_cli.connect import books
    from penstock_cli.report.gather import exit_status, report_of
    from penstock_cli.report_forms import Form, form_of, put
    from penstock_cli.watching.all_alike import with_advice
    from penstock_producer.reporting.text import safe

    chosen = form_of("json" if as_json and not form else form, output)
    if as_json and chosen is not Form.JSON:
        raise UsageProblem(f"--json and --format {form} ask for two forms: give one of them")
    with books(state) as ledger:
        found = ledger.jobs.get(job)
        figures = with_advice(ledger, found, report_of(ledger, found))
        told = put(ledger, found, figures, chosen, output)
    if told:
        typer.echo(safe(told), err=True)
    raise typer.Exit(exit_status(figures))


def results(
    job: options.JobName,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="A file, s3://bucket/key, or - for standard output.",
        ),
    ] = None,
    output_format: options.OutputFormat = None,
    partial: Annotated[
        bool,
        typer.Option(
            "--partial",
            help="Append to FILE what has come since the last time, while the job runs.",
        ),
    ] = False,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="CURSOR",
            help=(
                "What was stored after that, in that order: start, or the cursor that is printed "
                "then."
            ),
        ),
    ] = None,
    provenance: Annotated[
        bool,
        typer.Option(
            "--provenance",
            help=(
                "Add to each JSON line the release, engine and prices that made it, and the job's "
                "digest."
            ),
        ),
    ] = False,
    escape_formulas: options.EscapeFormulas = False,
    into: options.Into = None,
    table: options.TableOrInto = None,
    into_id: options.IntoId = "id",
    state: options.StateOption = None,
) -> None:
    """Write the results so far: as OpenAI Batch output lines, as a table in a file, or into a
    database."""
    from penstock_cli.connect import books
    from penstock_cli.files import STDOUT
    from penstock_cli.result_forms import Asked, write
    from penstock_producer.reporting.text import safe

    asked = Asked(
        output, output_format, partial, after, escape_formulas, into, table, into_id, provenance
    )
    with books(state) as ledger:
        said = write(ledger, ledger.jobs.get(job), asked)
    typer.echo(safe(said), err=output == STDOUT)
