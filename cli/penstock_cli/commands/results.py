"""`penstock report`, `results` and `costs`: what came of jobs, and what they cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from penstock_cli.errors import UsageProblem
from penstock_cli.job import options
from penstock_cli.show.terminal import aligned
from penstock_producer.reporting.text import count, one_line

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_ledger import Saving, Spending
    from penstock_producer.reporting.money import Money

Output = Annotated[
    str | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="A file, s3://bucket/key, or - for standard output."
    ),
]


def report(
    job: options.JobName,
    as_json: options.JsonOption = False,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="F",
            help="text, json, markdown or html; by default what FILE ends in.",
        ),
    ] = "",
    as_html: Annotated[bool, typer.Option("--html", help="The same as --format html.")] = False,
    output: Output = None,
    state: options.StateOption = None,
) -> None:
    """Show what became of a job.

    Exit status as for `run`: 0 all succeeded, 3 with dead letters,
    1 not completed. As HTML it is one page with charts, without scripts.
    """
    from penstock_cli.connect import books
    from penstock_cli.files import exit_status, form_of, put, report_of
    from penstock_cli.run.all_alike import with_advice
    from penstock_producer.reporting.text import safe

    asked = {form} - {""} | ({"json"} if as_json else set()) | ({"html"} if as_html else set())
    if len(asked) > 1:
        raise UsageProblem(
            f"{', '.join(sorted(asked))}: these are several forms of one report; ask for one"
        )
    chosen = form_of(next(iter(asked), ""), output)
    with books(state) as ledger:
        found = ledger.jobs.get(job)
        figures = with_advice(ledger, found, report_of(ledger, found))
        told = put(ledger, found, figures, chosen, output)
    if told:
        typer.echo(safe(told), err=True)
    raise typer.Exit(exit_status(figures))


def results(
    job: options.JobName,
    output: Output = None,
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
                "Only what was stored after this cursor: start, or the one that the last call "
                "printed."
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
    keep_columns: options.KeepColumns = "all",
    order: options.Order = "source",
    state: options.StateOption = None,
) -> None:
    """Write the results so far: as OpenAI Batch lines, as a table in a file, or into a database."""
    from penstock_cli.connect import books
    from penstock_cli.files import STDOUT
    from penstock_cli.result_forms import Asked, write
    from penstock_producer.job.sinks import columns_problem
    from penstock_producer.reporting.text import safe

    if order not in ("source", "done"):
        raise UsageProblem(f"--order {order!r} is unknown: use source or done")
    if problem := columns_problem(keep_columns, order):
        raise UsageProblem(f"--keep-columns: {'; '.join(problem)}")
    asked = Asked(
        output,
        output_format,
        partial,
        after,
        escape_formulas,
        into,
        table,
        into_id,
        keep_columns,
        order,
        provenance,
    )
    with books(state) as ledger:
        said = write(ledger, ledger.jobs.get(job), asked)
    typer.echo(safe(said), err=output == STDOUT)


class By(StrEnum):
    TENANT = "tenant"
    LANE = "lane"


def costs(
    by: Annotated[By, typer.Option("--by", help="What the costs are added up by.")] = By.TENANT,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Only jobs that were submitted in this time, such as 24h or 30d.",
        ),
    ] = None,
    as_json: options.JsonOption = False,
    state: options.StateOption = None,
) -> None:
    """Add up what jobs have cost, by tenant or by lane, the dearest first.

    What was spent stays in it: dead letters that were replayed,
    lost batches, jobs that were purged. Where of some of it no
    price is known, that is said, and the sum is of the rest.
    Saved is by service tiers and the provider's prompt cache.
    """
    import time

    import orjson

    from penstock_cli.connect import books
    from penstock_cli.job.jobspec import parse_duration

    begins = 0.0 if since is None else time.time() - parse_duration("--since", since)
    with books(state) as ledger:
        found = costs_by(ledger, by.value, begins)
    if as_json:
        for cost in found:
            typer.echo(orjson.dumps(cost.to_json(by.value)).decode())
        return
    for line in table(found, by.value) if found else ["no jobs yet"]:
        typer.echo(line)


NO_TENANT, NO_LANE = "(no tenant)", "(no lane)"


class Cost(NamedTuple):
    """Of one tenant or lane."""

    of: Spending
    unpriced: int  # of its jobs: some of what they cost has no known price
    savings: Sequence[Saving] = ()  # by service tiers and prompt caches
    unnoted: int = 0  # of its jobs: some answers are of releases that did not book what they saved

    def to_json(self, by: str) -> dict[str, Any]:
        from penstock_producer.reporting.money import saved_by_cause

        figures = self.of._asdict()
        del figures["cost_microusd"], figures["unpriced"]
        name, money = figures.pop("name"), self.money
        return {
            by: name,
            **figures,
            "cost_usd": money.usd,
            "known_usd": money.known_usd,
            "jobs_without_price": self.unpriced,
            "saved_usd": self.saved.usd,
            "saved_by_cause": {
                cause: one._asdict() for cause, one in saved_by_cause(self.savings).items()
            },
            "jobs_without_savings": self.unnoted,
        }

    @property
    def money(self) -> Money:
        from penstock_producer.reporting.money import money_of

        return money_of(self.of, is_priced=not self.unpriced)

    @property
    def saved(self) -> Money:
        from penstock_producer.reporting.money import saved_in_all

        return saved_in_all(self.savings, is_noted=not self.unnoted)


def costs_by(ledger: Books, by: str, since: float) -> list[Cost]:
    """Return what the jobs have cost by tenant or lane, the dearest first.

    A job counts as a whole where it was submitted at `since` (Unix time) or later."""
    from penstock_ledger import Provenance, SpendingStore
    from penstock_producer.reporting.money import is_unpriced, notes_savings

    store = SpendingStore(ledger.database)
    tenants = store.tenants(since)
    unpriced, unnoted = (defaultdict[str | None, set[str]](set) for _ in range(2))
    for job_id, made in Provenance(ledger.database).of_all():
        if job_id in tenants:
            name = tenants[job_id] if by == "tenant" else made.lane
            if is_unpriced(made):
                unpriced[name].add(job_id)
            if not notes_savings(made):
                unnoted[name].add(job_id)
    found = store.by_tenant(since) if by == "tenant" else store.by_lane(since)
    savings = store.savings(since, by_lane=by == "lane")
    costs = [
        Cost(one, len(unpriced[one.name]), savings.get(one.name, ()), len(unnoted[one.name]))
        for one in found
    ]
    return sorted(costs, key=lambda cost: (-cost.of.cost_microusd, cost.of.name or ""))


def table(costs: Sequence[Cost], by: str) -> list[str]:
    """Return the sums as lines: one for each, and one of all."""
    header = [by, "jobs", "succeeded", "dead", "calls", "tokens in", "tokens out", "cost", "saved"]
    rows = [
        _row(one_line(cost.of.name or (NO_TENANT if by == "tenant" else NO_LANE), 64), cost, by)
        for cost in costs
    ]
    if len(costs) > 1:
        whole = costs[0].of._replace(name=None)
        for cost in costs[1:]:
            whole = whole.plus(cost.of[1:])
        savings = [one for cost in costs for one in cost.savings]
        unpriced, unnoted = (
            sum(figures) for figures in zip(*((c.unpriced, c.unnoted) for c in costs), strict=True)
        )
        rows.append(_row("together", Cost(whole, unpriced, savings, unnoted), by))
    return aligned(header, rows)


def _row(name: str, cost: Cost, by: str) -> list[str]:
    from penstock_producer.reporting.words import saved_words

    of = cost.of
    # a job may have run in several lanes
    jobs = "" if by == "lane" and (of.name is None) else count(of.jobs)
    figures = (of.succeeded, of.dead, of.calls, of.prompt_tokens, of.completion_tokens)
    return [name, jobs, *map(count, figures), cost.money.words, saved_words(cost.saved)]
