"""A look at a job before it is submitted: a preview of it, or a random sample of its source.

Nothing is accepted or called. A sample is lines of input, which make a job of its own with the
requests of the whole one.

What a sample says of all documents has an interval, by the bootstrap, helped by the sizes of all
requests. The size of each request is known before it is sent, and so is the sum of all sizes. Where
what is measured goes with the size (as prompt tokens do), the sum over all documents is therefore
known far better than the sample's mean says: the estimate is that of regression, mean times number
plus slope times what the sample's sizes miss. Where it does not, the slope is about none.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import orjson

from penstock_ledger.errors import PenstockError
from penstock_producer.accepting.acceptance import beyond_budget, check_estimate
from penstock_producer.accepting.estimates import Estimate, Measure, TokenMeter
from penstock_producer.accepting.prompt_caching import ASKED, CacheUse, cache_use
from penstock_producer.accepting.quality import (
    Facts,
    Levers,
    check_batches,
    estimated_usd,
    factors_of,
    levers_of,
)
from penstock_producer.accepting.survey import Survey, Surveyed, check_bad_rows, job_meter, survey
from penstock_producer.errors import Problem, SourceError, SpecError
from penstock_producer.job.lanes import packs
from penstock_producer.job.provider_facts import ProviderFacts
from penstock_producer.job.routing import route_in, unmarked
from penstock_producer.job.spec import JobSpec
from penstock_producer.job.tiers import in_tier
from penstock_producer.pins import content_of
from penstock_producer.planning.prefixes import CachedPrompts
from penstock_producer.rows import BadRow, Document, FileSource, Tally

__all__ = [
    "CONFIDENCE",
    "FOR_ALL",
    "Interval",
    "Preview",
    "Sample",
    "check_sampled",
    "drawn",
    "extrapolated",
    "input_line",
    "preview",
    "said_by_lines",
    "sample_of",
    "sampled_line",
    "share_of_largest",
]


@dataclass(frozen=True, slots=True)
class Preview:
    """The requests that a job would send, and what they would cost."""

    uri: str
    spec: JobSpec
    requests: Sequence[Document]  # the first that can be used
    survey: Survey
    is_whole: bool  # whether all rows were read
    prompts_usd: float | None  # what prompts alone cost; None: no price is known
    cost_usd: float | None  # with answers as long as they may be
    meter: TokenMeter  # what counts tokens
    levers: Levers  # what the rules of the job do to its cost
    cache: CacheUse | None = None  # of the provider's prompt cache
    unfit: SpecError | None = None  # what it asks for and cannot have: a cache, batches

    @property
    def documents(self) -> int:
        """Those that can be used."""
        return self.survey.total - len(self.survey.refused)

    @property
    def refused(self) -> list[BadRow]:
        """Rows that would be dead letters, in their order."""
        return [one.row for one in self.survey.refused]

    @property
    def tally(self) -> Tally:
        """Return what the job's options changed in these rows."""
        return Tally.of_pin(self.survey.pin)

    @property
    def expected_usd(self) -> float | None:
        """Return the cost with the answers that go on, as far as an earlier job says how many."""
        return self.cost_usd if self.levers.gone_on is None else self.levers.expected_usd

    @property
    def over_budget(self) -> str | None:
        """Return what to say where the job may cost more than its budget."""
        return beyond_budget(self.spec.budget_usd, self.expected_usd)

    def tokens_of(self, request: Document) -> Estimate:
        return Measure.taken([request.body], self.meter).of(1)

    def url_of(self, request: Document) -> str:
        return request.endpoint or self.spec.endpoint

    def to_json(self) -> dict[str, Any]:
        """Return it for programs, but for what is refused; None is unknown."""
        return {
            "rows": self.survey.total,
            "whole": self.is_whole,
            "documents": self.documents,
            "unusable": len(self.survey.refused),
            "requests": [
                {
                    "doc_id": one.doc_id,
                    "line": one.line,
                    "url": self.url_of(one),
                    "body": orjson.loads(one.body),
                    **_tokens(self.tokens_of(one)),
                }
                for one in self.requests
            ],
            **_tokens(self.survey.estimate),
            **self.levers.to_json(),
            "tokens_by": self.meter.by,
            "prompts_usd": self.prompts_usd,
            "cost_usd": self.expected_usd,
            "prompt_cache": None if self.cache is None else self.cache.to_json(),
        }

    def refusal(self) -> PenstockError | None:
        """Return what a submit of these rows would raise; None where it would accept them."""
        try:
            check_bad_rows(self.uri, self.spec, self.survey.total, self.refused)
            if self.spec.over_budget != "warn":
                check_estimate(self.spec, self.expected_usd)
        except PenstockError as error:
            return error
        return self.unfit


def _tokens(guess: Estimate) -> dict[str, Any]:
    return {
        "tokens_in": guess.tokens_in,
        "tokens_out": guess.tokens_out,
        "tokens_out_capped": guess.capped,
    }


def preview(
    source: Surveyed,
    spec: JobSpec,
    facts: Facts,
    shown: int,
    *,
    most: int | None = None,
    meter: TokenMeter | None = None,
    progress: Callable[[int], None] | None = None,
) -> Preview:
    """Read a source, and return its first ``shown`` requests and what all of it would cost.

    ``most``: how many rows are read, all where it is None. Rows that cannot be used do not stop it,
    however many the spec allows. ``facts``: of the providers that it asks.

    Raises what reading raises, and SourceError `empty_source`.
    """
    first: dict[str, Document] = {}

    def keep(document: Document) -> None:
        if len(first) < shown:
            first.setdefault(document.doc_id, document)

    meter = meter or job_meter(spec)
    patient = spec.model_copy(update={"max_bad_rows": "100%"})
    found = survey(source, patient, progress, meter, keep, most)
    provider, cache, unfit = facts(spec.provider), None, None
    try:
        if most is None or found.total < most:
            check_batches(spec, found, facts)
        cache = cache_use(spec, found, provider)
    except SpecError as error:
        unfit = error
    factors = factors_of(spec, found, facts)
    found = replace(found, estimate=found.estimate._replace(factors=factors))
    return Preview(
        source.uri,
        spec,
        [_as_sent(one, spec, _cached(spec, cache, provider)) for one in first.values()],
        found,
        is_whole=most is None or found.total < most,
        prompts_usd=estimated_usd(spec, found.prompts, facts, cache),
        cost_usd=estimated_usd(spec, found, facts, cache),
        meter=meter,
        levers=levers_of(spec, found, facts, cache),
        cache=cache,
        unfit=unfit,
    )


def _cached(spec: JobSpec, cache: CacheUse | None, provider: ProviderFacts) -> CachedPrompts | None:
    if cache is None:
        return None
    place, in_batch = (provider.kind, provider.base_url), packs(spec.first_lane)
    return CachedPrompts.of(cache.kept(), *place, spec.endpoint, packs=in_batch)


def _as_sent(request: Document, spec: JobSpec, cached: CachedPrompts | None) -> Document:
    """Return the request as it is sent.

    It is without its route, in the tier that this has, and as the prompt cache wants it."""
    rule = next((one for one in spec.routing.rules if one.number == route_in(request.body)), None)
    body = unmarked(request.body)
    if rule is not None and rule.target is not None:
        spec, cached = spec.asked_as(rule.target), None
    if spec.tier is not None and spec.tier_in(spec.first_lane) is not None:
        body = in_tier(body, request.endpoint or spec.endpoint, spec.tier)
    if cached is not None and request.endpoint is None:
        body = cached.laid_out(body, cached.levels(body))
    return request._replace(body=body)


# Options that a line of input says itself, once requests are made: its job has none of them.
SAID_BY_LINES: Final = (
    "prompt",
    "template",
    "system",
    "messages_field",
    "examples",
    "truncate",
    "tokenizer",
    "compress_prompt",
    "image_fields",
    "audio_fields",
    "params",
    "param_fields",
    "format",
    "sheet",
    "encoding",
    "table",
    "query",
    "routes",
)
FOR_ALL: Final = ("into", "into_table", "into_id")  # a trial is not for others' table


class Sample(NamedTuple):
    """The rows that were drawn, and of how much."""

    lines: Iterator[bytes]  # of input, read as they are taken
    spec: JobSpec  # of the sample's own job
    name: str  # the same for the same draw
    documents: int  # of the whole source that can be used
    size: int  # bytes of all their requests


def sample_of(open_it: Callable[[], FileSource], spec: JobSpec, number: int) -> Sample:
    """Draw ``number`` documents, or all where there are fewer.

    The same source, options and number draw the same ones.

    ``open_it`` is called twice: all of the source is read to count it, and again for the lines.
    Raises what reading raises, and SourceError for a source without a usable document.
    """
    check_sampled(spec)
    opened = open_it()
    found = survey(opened, spec)
    documents = found.total - len(found.refused)
    if documents == 0:
        raise SourceError(
            "empty_source", f"{opened.uri} holds no usable document to take a sample of"
        )
    options = spec.to_json()
    given = orjson.dumps(
        [options, content_of(found.pin), number], option=orjson.OPT_SORT_KEYS, default=str
    )
    digest = hashlib.sha256(given).hexdigest()
    lines = (sampled_line(one, spec) for one in drawn(open_it(), found, number, seed=digest))
    said = {*said_by_lines(spec), *FOR_ALL}
    own = {name: value for name, value in options.items() if name not in said}
    if own["prompt_cache"] in ASKED:  # so few may share too little, and are asked all the same
        own["prompt_cache"] = "auto"
    its_spec = JobSpec.from_json(own | {"response_format": "none"})
    return Sample(lines, its_spec, f"sample-{digest[:8]}", documents, found.size)


def check_sampled(spec: JobSpec) -> None:
    """Raise SpecError where lines of input cannot say which way their documents go."""
    for rule in spec.routing.rules:
        if rule.target is not None and rule.target.provider:
            why = f"{rule.named} has a provider, and the lines of a sample name none"
            fix = "leave it out for the sample, or look at the preview"
            problem = Problem("invalid_value", f"/routes/{rule.number - 1}", why, fix)
            raise SpecError([problem])


def said_by_lines(spec: JobSpec) -> tuple[str, ...]:
    """Return the options that the lines of a sample say themselves.

    The service tier is one where rules have others than the job."""
    return (*SAID_BY_LINES, "tier") if _lines_have_tiers(spec) else SAID_BY_LINES


def sampled_line(one: Document, spec: JobSpec) -> bytes:
    """Return a document of a job as a line of its sample."""
    if _lines_have_tiers(spec):
        one = _as_sent(one, spec, None)
    return input_line(one.doc_id, one.body, one.endpoint or spec.endpoint)


def _lines_have_tiers(spec: JobSpec) -> bool:
    rules = spec.routing.rules if spec.routes else ()
    return any(rule.target is not None and rule.target.tier for rule in rules)


def drawn(opened: FileSource, found: Survey, number: int, *, seed: str) -> Iterator[Document]:
    """Yield ``number`` documents, or all when there are fewer, in the order of the source.

    Each is as likely as the others.
    """
    refused = {refusal.row.line for refusal in found.refused}
    usable = found.total - len(refused)
    wanted = frozenset(random.Random(seed).sample(range(usable), min(number, usable)))
    rows = (row for row in opened.documents({}) if row.line not in refused)
    documents: Any = (
        row for index, row in enumerate(itertools.islice(rows, usable)) if index in wanted
    )
    return iter(documents)


def input_line(doc_id: str, body: bytes, endpoint: str) -> bytes:
    """Return an OpenAI Batch line, its end included."""
    line: Mapping[str, Any] = {
        "custom_id": doc_id,
        "method": "POST",
        "url": endpoint,
        "body": orjson.Fragment(unmarked(body)),
    }
    # A body may have line ends between its tokens, where a blank does as well.
    return orjson.dumps(line).replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"


CONFIDENCE: Final = 0.9
RESAMPLES: Final = 600
# beyond so many documents they are resampled in random groups, which says the same of a mean
GROUPS_MAX: Final = 200
SLOPE_FROM: Final = 20  # documents: a slope that fewer say is more chance than slope
LARGEST: Final = 0.01  # of the sample


class Interval(NamedTuple):
    """A sum over all documents."""

    low: float
    middle: float
    high: float


def extrapolated(
    sizes: Sequence[float],
    measured: Mapping[str, Sequence[float]],
    documents: int,
    all_sizes: float,
    *,
    seed: int = 0,
) -> dict[str, Interval]:
    """Return the sums over ``documents`` with ``all_sizes`` together, from a sample.

    The sample is drawn without replacement. CONFIDENCE of the intervals hold the true sum. Seeded:
    the same sample says the same.

    A sample of all documents has no interval left; of a part of them it shrinks by the share that
    was seen.
    """
    number = len(sizes)
    if number == 0:
        return {}
    luck = random.Random(seed)
    cells = _cells(sizes, measured, luck)
    unseen = max(0.0, 1 - number / documents) ** 0.5
    middles = _sums(cells, range(len(cells)), documents, all_sizes, sloped=number >= SLOPE_FROM)
    found: dict[str, list[float]] = {name: [] for name in measured}
    places = range(len(cells))
    for _ in range(RESAMPLES if len(cells) > 1 else 1):
        drawn = luck.choices(places, k=len(cells))
        for name, value in _sums(
            cells, drawn, documents, all_sizes, sloped=number >= SLOPE_FROM
        ).items():
            found[name].append(middles[name] + (value - middles[name]) * unseen)
    return {name: _between(sorted(values), middles[name]) for name, values in found.items()}


def share_of_largest(values: Sequence[float]) -> float:
    """Return how much of the sum the largest hundredth of the sample makes.

    That is one document at least.
    """
    total = sum(values)
    if total <= 0:
        return 0.0
    most = sorted(values, reverse=True)[: max(1, round(len(values) * LARGEST))]
    return sum(most) / total


class _Cell(NamedTuple):
    """Means over one document, or over a group of them."""

    size: float
    values: Mapping[str, float]


def _cells(
    sizes: Sequence[float], measured: Mapping[str, Sequence[float]], luck: random.Random
) -> list[_Cell]:
    order = list(range(len(sizes)))
    luck.shuffle(order)
    groups = min(len(order), GROUPS_MAX)
    return [
        _Cell(
            sum(sizes[one] for one in part) / len(part),
            {
                name: sum(values[one] for one in part) / len(part)
                for name, values in measured.items()
            },
        )
        for part in (order[first::groups] for first in range(groups))
    ]


def _sums(
    cells: Sequence[_Cell], drawn: Sequence[int], documents: int, all_sizes: float, *, sloped: bool
) -> dict[str, float]:
    number = len(drawn)
    mean_size = sum(cells[one].size for one in drawn) / number
    spread = sum((cells[one].size - mean_size) ** 2 for one in drawn)
    missed = all_sizes - documents * mean_size
    sums = {}
    for name in cells[0].values:
        mean = sum(cells[one].values[name] for one in drawn) / number
        slope = 0.0
        if sloped and spread > 0:
            slope = (
                sum(
                    (cells[one].size - mean_size) * (cells[one].values[name] - mean)
                    for one in drawn
                )
                / spread
            )
        sums[name] = max(0.0, documents * mean + slope * missed)
    return sums


def _between(values: Sequence[float], middle: float) -> Interval:
    edge = (1 - CONFIDENCE) / 2
    last = len(values) - 1
    return Interval(values[round(edge * last)], middle, values[round((1 - edge) * last)])
