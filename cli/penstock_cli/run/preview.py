"""The first rows of a source as requests: what `penstock preview` shows.

Nothing is started, called or written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock_cli.run.dry_run import asked_form, digest_of, estimate, token_limits
from penstock_producer.accepting.estimates import Estimate
from penstock_producer.reporting.account import changes, saved_tokens
from penstock_producer.reporting.advice import on_terminal
from penstock_producer.reporting.text import count, counted, safe, usd

if TYPE_CHECKING:
    from penstock_cli.job.given import FromJob
    from penstock_producer.accepting.estimates import TokenMeter
    from penstock_producer.job.spec import JobSpec
    from penstock_producer.prices.token_prices import ModelPrices
    from penstock_producer.rows import Tally
    from penstock_producer.sources import Document, FileSource

LOOKED_AT = 100  # rows, for problems; the whole source is read by `penstock run --dry-run`
PROBLEMS_SHOWN = 10
SHOWN_CHARS = 20_000  # of one request
_MEDIA = re.compile(
    r"((?:data:[\w/+.-]{1,60};base64,)?[A-Za-z0-9+/]{20})[A-Za-z0-9+/]{1000,}={0,2}"
)


@dataclass(frozen=True, slots=True)
class Looked:
    """The first rows of a source: those that became requests, and what is wrong with the others."""

    source: str
    documents: list[Document]
    problems: list[str]
    more: bool  # whether the source goes on after them
    tally: Tally  # what the options changed in these rows
    prices: ModelPrices | None  # of the job's model, as far as settings say; None = unknown
    meter: TokenMeter  # what counts the tokens of these rows

    @property
    def rows(self) -> int:
        return len(self.documents) + len(self.problems)


def looked_at(source: str, spec: JobSpec, shown: int, meter: TokenMeter) -> Looked:
    """Return the first rows of a source as requests.

    Raises what reading a source raises: SourceError, SpecError, SettingsError.
    """
    from penstock_producer.settings import ProducerSettings
    from penstock_producer.sources import open_source

    settings = ProducerSettings.load()
    prices = settings.prices(spec.provider).prices_of(spec.model)
    return _looked_into(source, open_source(source, spec, settings), prices, shown, meter)


def outcomes_looked_at(
    outcomes: FromJob, spec: JobSpec, shown: int, state: Path | None, meter: TokenMeter
) -> Looked:
    """Return the first outcomes of another job as requests.

    They are read from the configured database or that of a local run."""
    from penstock_cli.connect import books
    from penstock_producer import Producer
    from penstock_producer.settings import ProducerSettings

    settings = ProducerSettings.load()
    with books(state) as ledger, Producer(settings, database=ledger.database) as producer:
        source = producer.outcomes_source(outcomes.job, spec, where=outcomes.where)
        prices = settings.prices(spec.provider).prices_of(spec.model)
        return _looked_into(f"job {outcomes.job}", source, prices, shown, meter)


def _looked_into(
    source: str, opened: FileSource, prices: ModelPrices | None, shown: int, meter: TokenMeter
) -> Looked:
    from penstock_producer.accepting.sampling import first_rows

    found = first_rows(opened, max(LOOKED_AT, shown))
    return Looked(
        source,
        found.documents,
        [on_terminal(row.text) for row in found.refused],
        found.more,
        found.tally,
        prices,
        meter,
    )


def show(found: Looked, spec: JobSpec, shown: int) -> None:
    """Print for people: each request with its line, id and tokens, then the problems."""
    for document in found.documents[:shown]:
        line = f"line {document.line} · " if document.line else ""
        tokens, url = (
            _tokens(estimate([document], 1, found.meter)),
            document.endpoint or spec.endpoint,
        )
        typer.echo(safe(f"{line}{document.doc_id} · {tokens} · {url}"))
        body = _MEDIA.sub(
            _shortened, json.dumps(json.loads(document.body), indent=2, ensure_ascii=False)
        )
        typer.echo(
            safe(
                body
                if len(body) <= SHOWN_CHARS
                else f"{body[:SHOWN_CHARS]}… ({count(len(body))} characters)"
            )
        )
    for problem in found.problems[:PROBLEMS_SHOWN]:
        typer.echo(safe(problem))
    for text in _summary(found, spec):
        typer.echo(safe(on_terminal(text)))


def _shortened(found: re.Match[str]) -> str:
    """Return an image or sound in a request, by its beginning and its size."""
    return f"{found[1]}… ({count(len(found[0]))} characters)"


def show_json(found: Looked, spec: JobSpec, shown: int) -> None:
    """Print for programs: one object."""
    requests: list[dict[str, Any]] = []
    for document in found.documents[:shown]:
        tokens = estimate([document], 1, found.meter)
        requests.append(
            {
                "doc_id": document.doc_id,
                "line": document.line,
                "url": document.endpoint or spec.endpoint,
                "body": json.loads(document.body),
                "tokens_in": tokens.tokens_in,
                "tokens_out": tokens.tokens_out,
                "tokens_out_capped": tokens.capped,
            }
        )
    typer.echo(
        json.dumps(
            {
                "requests": requests,
                "problems": found.problems,
                "rows": found.rows,
                "more": found.more,
                "tokens_by": found.meter.by,
                "rows_cut": found.tally.cut,
                "tokens_saved": saved_tokens(found.tally),
                "response_format": list(asked_form(spec, found.documents)),
            }
        )
    )


def _tokens(guess: Estimate) -> str:
    out = "at most" if guess.capped else "perhaps"
    return f"about {count(guess.tokens_in)} tokens in, {out} {count(guess.tokens_out)} out"


def _summary(found: Looked, spec: JobSpec) -> Iterator[str]:
    if len(found.problems) > PROBLEMS_SHOWN:
        yield f"… and {count(len(found.problems) - PROBLEMS_SHOWN)} more problems"
    if found.rows == 0:
        yield f"{found.source} holds no document"
        return
    first = "first " if found.more else ""
    yield (
        f"the {first}{counted(found.rows, 'row')}: {counted(len(found.documents), 'request')}, "
        f"{counted(len(found.problems), 'problem')}"
    )
    if found.documents:
        guess = estimate(found.documents, len(found.documents), found.meter)
        yield f"together {_tokens(guess)} (by {found.meter.by}); nothing was called"
        cost = guess.usd(found.prices)
        if spec.budget_usd is not None and cost:
            rows = count(int(spec.budget_usd / cost * len(found.documents)))
            yield (
                f"they cost about {usd(cost)}; the budget of {usd(spec.budget_usd)} pays for about "
                f"{rows} requests like them"
            )
        if spec.examples:
            yield (
                f"{counted(len(spec.examples), 'example')} in each request, sha256 "
                f"{digest_of(spec.examples)[:12]}"
            )
        yield from changes(found.tally.cut, saved_tokens(found.tally))
        yield from token_limits(spec)
    yield from asked_form(spec, found.documents)
