"""Shows what a job would send and cost: `penstock preview`, and `--dry-run` of `run` and `submit`.

Nothing is started, called or written."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from penstock_producer.job.lanes import packs
from penstock_producer.reporting.account import changes, saved_tokens
from penstock_producer.reporting.advice import on_terminal
from penstock_producer.reporting.text import count, counted, counts_in_words, safe, usd

if TYPE_CHECKING:
    from penstock_cli.job.given import FromJob, GivenJob
    from penstock_cli.job.options import ProviderFlags
    from penstock_producer.accepting.estimates import Estimate
    from penstock_producer.accepting.prompt_caching import CacheUse
    from penstock_producer.accepting.quality import Levers
    from penstock_producer.accepting.sampling import Preview
    from penstock_producer.accepting.survey import Surveyed
    from penstock_producer.job.spec import JobSpec
    from penstock_workers.settings import ProviderSettings, WorkerSettings

__all__ = ["look", "previewed"]

SHOWN_CHARS: Final = 20_000  # of one request
PROBLEMS_SHOWN: Final = 10  # to people
PROBLEMS_TOLD: Final = 100  # to programs
_MEDIA: Final = re.compile(
    r"((?:data:[\w/+.-]{1,60};base64,)?[A-Za-z0-9+/]{20})[A-Za-z0-9+/]{1000,}={0,2}"
)
_JSON_OBJECT: Final = b"json_object"


def look(
    given: GivenJob,
    flags: ProviderFlags,
    outcomes: FromJob | None,
    *,
    state: Path | None = None,
    job_key: str | None = None,
    shown: int = 3,
    most: int | None = None,
    as_json: bool = False,
) -> None:
    """Print the first ``shown`` requests of a job, and what all of them would cost.

    Where ``state`` has a sample of it, or an earlier job of its key, that says how many answers go
    on to a better model.

    Raises what a submit of the job would raise; where that is about its rows or its budget, after
    they were printed.
    """
    from rich.console import Console

    from penstock_cli.run.extrapolated import gone_on_before
    from penstock_producer import SpecError

    name = given.source if outcomes is None else f"job {outcomes.job}"
    with Console(stderr=True).status(f"reading {safe(name)} …") as status:
        found, settings = previewed(
            given,
            flags,
            outcomes,
            state=state,
            shown=shown,
            most=most,
            progress=lambda rows: status.update(f"reading {safe(name)}: {count(rows)} rows"),
        )
    if state is not None and job_key is not None:
        gone_on = gone_on_before(state, job_key, found.spec)
        found = replace(found, levers=found.levers._replace(gone_on=gone_on))
    (_show_json if as_json else _show)(name, found, settings)
    refusal = found.refusal()
    if refusal is not None:
        raise given.refusal(refusal) if isinstance(refusal, SpecError) else refusal


def previewed(
    given: GivenJob,
    flags: ProviderFlags,
    outcomes: FromJob | None = None,
    *,
    state: Path | None = None,
    shown: int = 3,
    most: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Preview, WorkerSettings]:
    """Return the preview of a job with ``shown`` requests, and the settings that it goes by.

    ``most``: how many rows are read, all where it is None. Raises what reading a source, checking
    flags and settings raises.
    """
    from penstock_cli.job.given import for_a_look, meter
    from penstock_cli.job.jobspec import job_spec, with_provider
    from penstock_producer import SpecError
    from penstock_producer.accepting.acceptance import check_acceptable
    from penstock_producer.accepting.quality import check_prices
    from penstock_producer.accepting.sampling import preview
    from penstock_workers.settings import WorkerSettings

    looked, tokenizer = for_a_look(given)
    spec = job_spec(looked)
    settings = with_provider(
        WorkerSettings.load(lane=spec.first_lane), spec.provider, flags, needs_key=False
    )
    provider = settings.provider(spec.provider)
    counts = meter(spec, tokenizer)
    try:
        check_acceptable(spec, provider)
        check_prices(spec, settings.prices)
        with _opened(given, outcomes, spec, state) as source:
            found = preview(
                source, spec, settings.prices, shown, most=most, meter=counts, progress=progress
            )
    except SpecError as error:
        raise given.refusal(error) from error
    return found, settings


@contextlib.contextmanager
def _opened(
    given: GivenJob, outcomes: FromJob | None, spec: JobSpec, state: Path | None
) -> Iterator[Surveyed]:
    """Open what the job would read: its source, or outcomes in the database of another job."""
    from penstock_producer.settings import ProducerSettings

    settings = ProducerSettings.load()
    if outcomes is None:
        from penstock_producer.sources import open_source

        yield open_source(given.source, spec, settings)
        return
    from penstock_cli.connect import books
    from penstock_producer import Producer

    with books(state) as ledger, Producer(settings, database=ledger.database) as producer:
        yield producer.outcomes_source(outcomes.job, spec, where=outcomes.where)


def _show(name: str, found: Preview, settings: WorkerSettings) -> None:
    """Print for people: what the source holds, the first requests, then tokens, cost and lanes."""
    from penstock_cli.run.lane_choice import beside, choice_lines, table
    from penstock_cli.show.terminal import console as make_console

    console, spec = make_console(), found.spec
    provider = settings.provider(spec.provider)
    for line in _source_lines(name, found):
        console.print(safe(line), soft_wrap=True)
    place = f"{provider.base_url} " if spec.asks_a_provider else ""
    if found.requests:
        console.print(
            f"the first requests, to {safe(place)}on the {spec.lane} lane:", soft_wrap=True
        )
    for one in found.requests:
        line = f"line {one.line} · " if one.line else ""
        tokens = _tokens(found.tokens_of(one))
        console.print(safe(f"{line}{one.doc_id} · {tokens} · {found.url_of(one)}"), soft_wrap=True)
        body = json.dumps(json.loads(one.body), indent=2, ensure_ascii=False)
        body = _MEDIA.sub(_shortened, body)
        most = f"… ({count(len(body))} characters)" if len(body) > SHOWN_CHARS else ""
        console.print(safe(body[:SHOWN_CHARS] + most), soft_wrap=True)
    for line in _job_lines(found, provider):
        console.print(safe(on_terminal(line)), soft_wrap=True)
    guess = found.survey.estimate
    console.print(table(beside(guess, found.documents, spec, provider)))
    for line in choice_lines(spec, guess, found.documents, provider, settings.lanes):
        console.print(safe(line), soft_wrap=True)
    if found.over_budget:
        console.print(f"{found.over_budget} (--over-budget {spec.over_budget})", soft_wrap=True)
    console.print("nothing was started, and no call was made", style="dim")


def _show_json(name: str, found: Preview, settings: WorkerSettings) -> None:
    """Print for programs: one object; null is unknown."""
    from penstock_cli.run.lane_choice import beside, choice_lines

    spec, guess, refusal = found.spec, found.survey.estimate, found.refusal()
    provider = settings.provider(spec.provider)
    prices = provider.prices_of(spec.model, tier=spec.tier_in(spec.first_lane))
    shown = {
        "source": name,
        **found.to_json(),
        "problems": [on_terminal(row.text) for row in found.refused[:PROBLEMS_TOLD]],
        "refusal": None if refusal is None else on_terminal(refusal.text),
        "prices": None if prices is None else prices.model_dump(mode="json", exclude_none=True),
        "lanes": [one._asdict() for one in beside(guess, found.documents, spec, provider)],
        "choice": choice_lines(spec, guess, found.documents, provider, settings.lanes),
        "rows_cut": found.tally.cut,
        "tokens_saved": saved_tokens(found.tally),
        "response_format": list(_asked_form(found)),
    }
    typer.echo(json.dumps(shown))


def _shortened(found: re.Match[str]) -> str:
    """Return an image or sound in a request, by its beginning and its size."""
    return f"{found[1]}… ({count(len(found[0]))} characters)"


def _tokens(guess: Estimate) -> str:
    out = "at most" if guess.capped else "perhaps"
    return f"about {count(guess.tokens_in)} tokens in, {out} {count(guess.tokens_out)} out"


def _source_lines(name: str, found: Preview) -> Iterator[str]:
    """Yield what the source holds, and what is wrong with rows that cannot be used."""
    from penstock_producer.pins import skipped_in_words

    refused = found.refused
    holds = "" if found.is_whole else f"its first {counted(found.survey.total, 'row')}: "
    why = Counter(
        one.code if one.field is None else f"{one.code} in {one.field!r}" for one in refused
    )
    bad = (
        f", and {counted(len(refused), 'unusable row')}, for which nothing is sent or paid "
        f"({counts_in_words(why)})"
        if refused
        else ""
    )
    yield f"{name} holds {holds}{counted(found.documents, 'document')}{bad}"
    if (skipped := skipped_in_words(found.survey.pin)) is not None:
        yield skipped
    for row in refused[:PROBLEMS_SHOWN]:
        yield f"  {on_terminal(row.text)}"
    if len(refused) > PROBLEMS_SHOWN:
        yield f"  … and {count(len(refused) - PROBLEMS_SHOWN)} more"


def _job_lines(found: Preview, provider: ProviderSettings) -> Iterator[str]:
    """Yield what the options do to the requests, then their tokens and their cost."""
    from penstock_producer.feed.feeder_plan import is_worth_telling, plan_feeders

    spec, survey, guess = found.spec, found.survey, found.survey.estimate
    plan = plan_feeders(spec, survey.total, survey.size, survey.pin, one_machine=True)
    if is_worth_telling(spec, plan, survey.total):
        yield f"read by {plan}"
    if spec.examples:
        digest = hashlib.sha256(json.dumps(spec.examples, sort_keys=True).encode()).hexdigest()
        yield f"{counted(len(spec.examples), 'example')} in each request, sha256 {digest[:12]}"
    yield from _asked_form(found)
    yield from changes(found.tally.cut, saved_tokens(found.tally))
    if spec.tokens_counted is not None:
        yield f"tokens of --truncate are counted {spec.tokens_counted}"
    out = "at most" if guess.capped else "very roughly (no max_tokens is set)"
    yield (
        f"tokens: about {count(guess.tokens_in)} in (by {guess.by}), {out} "
        f"{count(guess.tokens_out)} out"
    )
    if survey.repeats:
        yield (
            f"--dedup {spec.dedup}: {counted(survey.repeats, 'document')} ask what others do, and "
            "are not sent"
        )
    if spec.asks_a_provider:
        yield f"cost: {_cost(found, provider, out)}"
    if found.cache is not None:
        yield _of_cache(found.cache)
    elif spec.prompt_cache == "auto" and spec.asks_a_provider:
        yield (
            "prompt cache: not used, since documents share too little, it would save nothing, or "
            "no price of cached tokens is known"
        )
    yield from _rule_lines(found)


def _rule_lines(found: Preview) -> Iterator[str]:
    """Yield a line for each rule by which documents are asked otherwise."""
    levers, spec = found.levers, found.spec
    for one in levers.routes:
        yield f"route {one.rule}: {counted(one.documents, 'document')}, {_about(one.cost_usd)}"
    if levers.escalated_usd is not None:
        none, every = map(_about, levers.escalated_usd)
        as_before = _as_before(levers)
        yield (
            f"--escalate {spec.escalate}: {none} where no answer goes on, {every} where all do"
            f"{as_before}"
        )
    for step, cost in levers.steps:
        yield f"--degrade {step}: documents that begin then; all of them by it, {_about(cost)}"


def _as_before(levers: Levers) -> str:
    before = levers.gone_on
    if before is None:
        return "; a --sample says how many do"
    return (
        f"; {_about(levers.expected_usd)} as in {before.job_key}, where {count(before.went_on)} of "
        f"{counted(before.documents, 'document')} did"
    )


def _about(cost_usd: float | None) -> str:
    return "at an unknown cost" if cost_usd is None else f"about {usd(cost_usd)}"


def _cost(found: Preview, provider: ProviderSettings, out: str) -> str:
    from penstock_producer.job.tiers import FLEX
    from penstock_producer.reporting.money import known_from, per_million

    spec = found.spec
    tier = spec.tier_in(spec.first_lane)
    prices = provider.prices_of(spec.model, tier=tier)
    if prices is None or found.cost_usd is None or found.prompts_usd is None:
        why = (
            "documents name their models"
            if spec.model is None
            else f"no price of {spec.model}{_of_tier(tier)} is known here"
        )
        return f"unknown, since {why}; give --usd-per-mtok-in and --usd-per-mtok-out"
    discount = (prices.batch_discount or 0.0) if all(map(packs, spec.permitted_lanes)) else 0.0
    less = f", less {discount:.0%} in batches" if discount else ""
    together = usd(found.cost_usd)
    if tier == spec.tier == FLEX:
        full = found.survey.estimate.usd(provider.prices_of(spec.model))
        together += "" if full is None else f", or {usd(full)} where flex has no room"
    own = "the job's own model " if spec.routes else ""
    return (
        f"about {usd(found.prompts_usd)} in, {out} {usd(found.cost_usd - found.prompts_usd)} out; "
        f"together {together} ({own}at {per_million(prices.input, prices.output)}"
        f"{_of_tier(tier)}{less}, "
        f"{known_from(prices)})"
    )


def _of_cache(use: CacheUse) -> str:
    """Return which beginnings are shared, and what that saves."""
    least, most = (max(0.0, use.usual_usd - one) for one in (use.most_usd, use.least_usd))
    saves = (
        f"about {usd(most)}"
        if use.most_usd <= use.least_usd
        else (f"between {usd(least)} and {usd(most)}")
    )
    made = "" if use.rent is None else f", with {counted(len(use.rent.names), 'explicit cache')}"
    return (
        f"prompt cache{made}: {counted(use.documents, 'document')} share "
        f"{counted(len(use.groups), 'beginning')}, {count(use.read)} tokens are read from it; that "
        f"saves {saves} of {usd(use.usual_usd)}"
    )


def _of_tier(tier: str | None) -> str:
    return "" if tier is None else f" in the service tier {on_terminal(tier)}"


def _asked_form(found: Preview) -> Iterator[str]:
    """Yield what requests say of the form of their answers; nothing where the job does not care."""
    told = found.spec.asked_format
    if found.spec.response_schema is None and told.format is None:
        return
    yield told.in_words
    is_loose = told.format is not None and told.format["type"] == "json_object"
    if is_loose and any(
        b"json" not in one.body.replace(_JSON_OBJECT, b"").lower() for one in found.requests
    ):
        yield (
            "OpenAI refuses json_object where no message has the word JSON: say in the prompt "
            "which JSON is wanted"
        )
