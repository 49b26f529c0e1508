"""`penstock run --dry-run`: check everything, show the first requests and an estimate.

Nothing is started or called.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock_cli.run.lane_choice import beside, choice_lines, table
from penstock_producer.accepting.estimates import MTOK, Estimate, Measure
from penstock_producer.job.lanes import packs
from penstock_producer.pins import skipped_in_words
from penstock_producer.reporting.account import changes, saved_tokens
from penstock_producer.reporting.advice import on_terminal
from penstock_producer.reporting.money import known_from, per_million
from penstock_producer.reporting.text import (
    count,
    counted,
    counts_in_words,
    one_line,
    safe,
    usd,
)

if TYPE_CHECKING:
    from rich.console import Console

    from penstock_producer.accepting.estimates import TokenMeter
    from penstock_producer.accepting.survey import Survey
    from penstock_producer.job.spec import JobSpec
    from penstock_producer.sources import Document
    from penstock_workers.lane_changes import LaneChangeSettings
    from penstock_workers.settings import ProviderSettings


_JSON_OBJECT = b"json_object"


def asked_form(spec: JobSpec, documents: Iterable[Document]) -> Iterator[str]:
    """Yield what requests say of the form of their answers; nothing where the job does not care."""
    told = spec.asked_format
    if spec.response_schema is None and told.format is None:
        return
    yield told.in_words
    is_loose = told.format is not None and told.format["type"] == "json_object"
    if is_loose and any(
        b"json" not in document.body.replace(_JSON_OBJECT, b"").lower() for document in documents
    ):
        yield (
            "OpenAI refuses json_object where no message has the word JSON: say in the prompt "
            "which JSON is wanted"
        )


def token_limits(spec: JobSpec) -> Iterator[str]:
    """Yield what counts the tokens of limits in tokens; nothing where there are none."""
    if spec.tokens_counted is not None:
        yield f"tokens of --truncate are counted {spec.tokens_counted}"


def digest_of(examples: Sequence[Mapping[str, Any]]) -> str:
    """Return what tells one file of examples from another, however it is written."""
    return hashlib.sha256(json.dumps(examples, sort_keys=True).encode()).hexdigest()


SHOWN = 3  # requests and unusable rows
SHOWN_CHARS = 2_000  # of one request


def estimate(
    documents: Sequence[Document], total: int, meter: TokenMeter | None = None
) -> Estimate:
    """Estimate the tokens of ``total`` documents, of which ``documents`` are the first."""
    return Measure.taken((document.body for document in documents), meter).of(total)


def show(
    console: Console,
    found: Survey,
    documents: Sequence[Document],
    spec: JobSpec,
    *,
    uri: str,
    provider: ProviderSettings | None,
    rules: LaneChangeSettings,
) -> None:
    """Print the first requests and the estimate.

    ``documents`` are the first of the source; ``provider`` is None for lanes that ask none;
    ``rules`` are of the choice of a lane."""
    from penstock_producer.accepting.acceptance import beyond_budget, estimated_usd
    from penstock_producer.rows import Tally

    tally = Tally.of_pin(found.pin)
    usable = found.total - len(found.refused)
    console.print("dry run: nothing was started, and no call was made", soft_wrap=True)
    why = Counter(
        one.row.code if one.row.field is None else f"{one.row.code} in {one.row.field!r}"
        for one in found.refused
    )
    bad = (
        f", and {count(len(found.refused))} unusable rows, which become dead letters and cost "
        f"nothing ({counts_in_words(why)})"
        if found.refused
        else ""
    )
    console.print(f"{safe(uri)} holds {counted(usable, 'document')}{safe(bad)}", soft_wrap=True)
    if (skipped := skipped_in_words(found.pin)) is not None:
        console.print(safe(skipped), soft_wrap=True)
    for refusal in found.refused[:SHOWN]:
        console.print(f"  {safe(on_terminal(refusal.row.text))}", soft_wrap=True)
    place = f"{provider.base_url} " if provider is not None else ""
    console.print(
        f"the first requests, to {place}{spec.endpoint} on the {spec.lane} lane:", soft_wrap=True
    )
    for document in documents[:SHOWN]:
        body = one_line(document.body.decode("utf-8", "replace"), SHOWN_CHARS)
        console.print(f"  {safe(document.doc_id)}  {body}", soft_wrap=True)
    told = (
        *_feeders(found, spec),
        *asked_form(spec, documents),
        *changes(tally.cut, saved_tokens(tally)),
        *token_limits(spec),
        *_lines(found.estimate, spec, provider),
    )
    for line in told:
        console.print(on_terminal(line), soft_wrap=True)
    if provider is None:
        return
    console.print(table(beside(found.estimate, usable, spec, provider)))
    for line in choice_lines(spec, found.estimate, usable, provider, rules):
        console.print(safe(line), soft_wrap=True)
    if words := beyond_budget(spec.budget_usd, estimated_usd(spec, found.estimate, provider)):
        console.print(f"{words} (--over-budget {spec.over_budget})", soft_wrap=True)


def _feeders(found: Survey, spec: JobSpec) -> list[str]:
    """Return how many read the source at once, where that may be asked."""
    from penstock_producer.feed.feeder_plan import is_worth_telling, plan_feeders

    plan = plan_feeders(spec, found.total, found.size, found.pin, one_machine=True)
    return [f"read by {plan}"] if is_worth_telling(spec, plan, found.total) else []


def _lines(guess: Estimate, spec: JobSpec, provider: ProviderSettings | None) -> list[str]:
    out = "at most" if guess.capped else "very roughly (no max_tokens is set)"
    tokens = (
        f"tokens: about {count(guess.tokens_in)} in (by {safe(guess.by)}), {out} "
        f"{count(guess.tokens_out)} out"
    )
    if provider is None:
        return [tokens]
    prices = provider.prices_of(spec.model)
    if prices is None:
        return [tokens, f"cost: {_unknown(spec)}"]
    discount = (prices.batch_discount or 0.0) if all(map(packs, spec.permitted_lanes)) else 0.0
    share = (1.0 - discount) / MTOK
    cost_in, cost_out = (
        guess.tokens_in * prices.input * share,
        guess.tokens_out * prices.output * share,
    )
    less = f", less {discount:.0%} in batches" if discount else ""
    return [
        tokens,
        f"cost: about {usd(cost_in)} in, {out} {usd(cost_out)} out; together "
        f"{usd(cost_in + cost_out)} (at {per_million(prices.input, prices.output)}{less}, "
        f"{known_from(prices)})",
    ]


def _unknown(spec: JobSpec) -> str:
    if spec.model is None:
        return (
            "unknown, since documents name their models; give --usd-per-mtok-in and "
            "--usd-per-mtok-out"
        )
    return (
        f"unknown, since no price of {safe(spec.model)} is known here; give --usd-per-mtok-in and "
        "--usd-per-mtok-out"
    )


def run(
    console: Console,
    source: str,
    spec: JobSpec,
    provider: ProviderSettings | None,
    meter: TokenMeter,
    rules: LaneChangeSettings,
) -> None:
    """Do the dry run.

    Raises what checking a source raises: SourceError, TooManyBadRows, SettingsError.
    """
    from penstock_producer.accepting.survey import survey
    from penstock_producer.settings import ProducerSettings
    from penstock_producer.sources import Document, open_source

    settings = ProducerSettings.load()
    with console.status(f"reading {safe(source)} …"):
        found = survey(open_source(source, spec, settings), spec, meter=meter)
        rows = open_source(source, spec, settings).documents({})
        documents = list(
            itertools.islice((row for row in rows if isinstance(row, Document)), SHOWN)
        )
    show(console, found, documents, spec, uri=source, provider=provider, rules=rules)
