"""`penstock estimate`: what a job would cost and take on each lane, before anything is spent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from penstock_cli.job.flags import Without, takes_flags
from penstock_cli.job.given import GivenJob
from penstock_cli.job.options import JsonOption, ProviderFlags
from penstock_producer.reporting.text import count, counted, safe

if TYPE_CHECKING:
    from penstock_cli.run.lane_choice import LaneGuess
    from penstock_producer.accepting.estimates import Estimate
    from penstock_producer.prices.token_prices import ModelPrices


@dataclass(frozen=True, slots=True)
class Estimated:
    """What is known of a job before anything is spent."""

    source: str
    documents: int
    unusable: int
    guess: Estimate
    prices: ModelPrices | None  # of the job's model; None = unknown
    lanes: list[LaneGuess]
    # which of several would be chosen, and whether the deadline would be met, for people
    choice: list[str]


def estimated(given: GivenJob, flags: ProviderFlags) -> Estimated:
    """Read the whole source and reckon each lane, without a call.

    Raises what reading a source and checking flags raises: SourceError, SpecError, UsageProblem,
    SettingsError."""
    from penstock_cli.job.counting import for_a_look, meter
    from penstock_cli.job.jobspec import job_spec, with_provider
    from penstock_cli.run.lane_choice import beside, choice_lines
    from penstock_producer import SpecError
    from penstock_producer.accepting.survey import survey
    from penstock_producer.settings import ProducerSettings
    from penstock_producer.sources import open_source
    from penstock_workers.settings import WorkerSettings

    given, tokenizer = for_a_look(given)
    spec = job_spec(given)
    settings = with_provider(
        WorkerSettings.load(lane=spec.first_lane), spec.provider, flags, needs_key=False
    )
    provider = settings.provider(spec.provider)
    try:
        found = survey(
            open_source(given.source, spec, ProducerSettings.load()),
            spec,
            meter=meter(spec, tokenizer),
        )
    except SpecError as error:
        raise given.refusal(error) from error
    usable = found.total - len(found.refused)
    lanes = beside(found.estimate, usable, spec, provider)
    choice = choice_lines(spec, found.estimate, usable, provider, settings.lanes)
    prices = provider.prices_of(spec.model)
    return Estimated(
        given.source, usable, len(found.refused), found.estimate, prices, lanes, choice
    )


def show(found: Estimated) -> None:
    """Print for people: documents and tokens, then the lanes."""
    from penstock_cli.run.lane_choice import table
    from penstock_cli.show.terminal import console as make_console
    from penstock_producer.reporting.money import known_from, per_million

    console, guess = make_console(), found.guess
    bad = (
        f", and {count(found.unusable)} unusable rows, which become dead letters"
        if found.unusable
        else ""
    )
    out = "at most" if guess.capped else "very roughly (no max_tokens is set)"
    console.print(
        f"{safe(found.source)} holds {counted(found.documents, 'document')}{bad}", soft_wrap=True
    )
    console.print(
        f"tokens: about {count(guess.tokens_in)} in (by {safe(guess.by)}), {out} "
        f"{count(guess.tokens_out)} out",
        soft_wrap=True,
    )
    if found.prices is not None:
        words = per_million(found.prices.input, found.prices.output)
        console.print(f"prices: {words}, {known_from(found.prices)}", soft_wrap=True)
    console.print(table(found.lanes))
    for line in found.choice:
        console.print(safe(line), soft_wrap=True)
    console.print("nothing was started, and no call was made", style="dim")


def show_json(found: Estimated) -> None:
    """Print for programs; null is unknown."""
    shown = {
        "source": found.source,
        "documents": found.documents,
        "unusable": found.unusable,
        "tokens_in": found.guess.tokens_in,
        "tokens_out": found.guess.tokens_out,
        "tokens_out_capped": found.guess.capped,
        "tokens_by": found.guess.by,
        "prices": None
        if found.prices is None
        else found.prices.model_dump(mode="json", exclude_none=True),
        "lanes": [lane._asdict() for lane in found.lanes],
        "choice": found.choice,
    }
    typer.echo(json.dumps(shown, indent=2))


@takes_flags
def estimate(
    given: GivenJob,
    provider: Annotated[ProviderFlags, Without("api_key_env", "profile")],
    as_json: JsonOption = False,
) -> None:
    """Show what a job would cost and take on each lane.

    Reads the whole source, calls nothing, and needs no key, no database
    and no Redis. Tokens are estimated from the first 1,000 documents.

    Exit status: 0, or 2 where a row limit, an option or the source is not usable.
    """

    given = given.for_api(given.of_run("api", provider.api))
    found = estimated(given, given.provider(provider))
    (show_json if as_json else show)(found)
