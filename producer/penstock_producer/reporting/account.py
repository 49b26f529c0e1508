"""The account of a job: the figures of `report.json`, which all forms of the report show.

It is gathered out of the ledger's tables. What a job's options changed in its rows, and the lanes
that its documents go to, is said wherever the job is shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock_ledger.texts import SetOption, Text
from penstock_producer.accepting.estimates import CHARS_PER_TOKEN
from penstock_producer.job.lanes import packs
from penstock_producer.reporting import money
from penstock_producer.reporting.by_rules import ByRules, by_rules
from penstock_producer.reporting.money import MICRO, Money, money_of
from penstock_producer.reporting.reasons import retried_by_reason, retries
from penstock_producer.reporting.text import count, counted, one_line, safe
from penstock_producer.rows import Tally

if TYPE_CHECKING:
    from penstock_ledger import Database, LaneMove, MadeWith, PromptSizes, Saving
    from penstock_ledger.model import Counts, Job, LaneCounts
    from penstock_producer.rows import Tally

__all__ = [
    "BatchesCreated",
    "PromptTokens",
    "Report",
    "build",
    "changes",
    "gathered",
    "lane_line",
    "lanes_of",
    "rules_of",
    "saved_tokens",
]

WHY_CHARS = 300


def lane_line(moves: Sequence[LaneMove]) -> str | None:
    """Return a line on a job whose lane was chosen or has changed.

    None for one that is where it was submitted to.
    """
    if not moves:
        return None
    last = moves[-1]
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last.at))
    before = "" if last.before is None else f", before in {last.before}"
    tier = f" in the {safe(str(last.figures['tier']))} tier" if "tier" in last.figures else ""
    why = f"{one_line(last.why, WHY_CHARS)} ({last.reason})"
    return f"lane {last.lane}{tier} since {since}{before}: {why}"


def lanes_of(moves: Iterable[LaneMove]) -> list[dict[str, Any]]:
    """Return the moves for JSON."""
    return [
        {
            "at": move.at,
            "before": move.before,
            "lane": move.lane,
            "reason": move.reason,
            "why": move.why,
        }
        for move in moves
    ]


def saved_tokens(tally: Tally) -> int:
    """Estimate the tokens of the blanks that compression took out."""
    return round(tally.saved_chars / CHARS_PER_TOKEN)


def changes(rows_cut: Mapping[str, int], tokens_saved: int) -> Iterator[str]:
    """Yield a line for each kind of change; none where nothing was changed."""
    if rows_cut:
        cut = ", ".join(
            f"{safe(name)} in {counted(rows, 'row')}" for name, rows in rows_cut.items()
        )
        yield Text("cut by ", SetOption("truncate"), f": {cut}")
    if tokens_saved:
        yield Text(SetOption("compress_prompt"), f" saves about {count(tokens_saved)} tokens")


def gathered(
    database: Database,
    job: Job,
    *,
    stats: Mapping[str, int],
    seconds: float | None = None,
    counts: Counts | None = None,
    sizes: bool = False,
) -> Report:
    """Gather the report of a job from the ledger.

    ``sizes``: how long prompts were, for which every row of the job is read.

    ``stats``: the counters of the job in Redis; empty where it does not run. ``seconds`` of work
    where they were measured, ``counts`` where they were read just now.
    """
    from penstock_ledger import BatchFigures, LaneMoves, OutcomeStore, Provenance, RunStore

    outcomes = OutcomeStore(database)
    with database.one_read():
        return build(
            job,
            outcomes.counts(job.job_id) if counts is None else counts,
            stats=stats,
            seconds=seconds,
            made_with=Provenance(database).of(job.job_id),
            moves=LaneMoves(database).of(job.job_id) if job.moves else [],
            lanes=outcomes.by_lane(job.job_id),
            created=BatchFigures(database).created(job.job_id),
            sizes=outcomes.prompt_sizes(job.job_id) if sizes else None,
            unread=BatchFigures(database).unread(job.job_id),
            run_before=RunStore(database).comparison_of(job.job_id),
            savings=outcomes.savings(job.job_id),
            rules=rules_of(database, job),
        )


def rules_of(database: Database, job: Job) -> ByRules | None:
    """Return what the rules of a job did; None where it has none."""
    from penstock_ledger import OutcomeStore, StepsTaken

    if not any(job.spec.get(name) for name in ("routes", "escalate", "degrade")):
        return None
    booked, taken = OutcomeStore(database).by_rules(job.job_id), StepsTaken(database)
    return by_rules(job, booked, taken.of(job.job_id))


class BatchesCreated(NamedTuple):
    """Batches of the job that providers took."""

    batches: int
    requests: int  # in them; a document that a batch left without an answer is in a later one again
    saved_usd: float | None  # by their discount; None: unknown
    unread: int = 0  # answers that were paid for and could not be read
    unread_usd: float | None = 0.0  # what these cost at most, as estimated; None: unknown


class PromptTokens(NamedTuple):
    """Tokens of prompts, for each call, as the answers count them."""

    # `up_to` so many tokens (null: more than the last), and `documents`
    histogram: list[dict[str, int | None]]
    largest: list[dict[str, str | int]]  # `doc_id` and `prompt_tokens`, the longest first


@dataclass(frozen=True, slots=True)
class Report:
    """The fields of `report.json`, in their order. Other tools read it: names stay."""

    job: str
    state: str
    total: int
    succeeded: int
    succeeded_after_retry: int
    dead: int
    skipped: int  # deliveries of documents that were finished already, and so were not asked again
    calls: int
    retries: int
    rate_limited: int
    prompt_tokens: int
    completion_tokens: int
    # spent, over all generations and lanes; None: of some of it no price is known
    cost_usd: float | None
    seconds: float  # of work: pauses between two runs of the same job do not count
    items_per_second: float
    dead_by_reason: dict[str, int]
    # attempts that were followed by another, or ended with their engine
    retried_by_reason: dict[str, int]
    provider_cost_usd: float | None  # the part of `cost_usd` that providers' prices make
    gpu_cost_usd: float | None  # the part that the time of workers with a model of their own makes
    rows_cut: dict[str, int]  # rows whose text was cut as the job asks, by column
    tokens_saved: int  # by taking blanks out of prompts, estimated
    # requests that showed a model what the schema had against its answer; among `calls`
    repairs: int = 0
    fallbacks: int = 0  # requests that went to the next model instead of a dead letter
    spec_digest: str = ""  # of the job's options and its source
    # releases, engines, prices; a result has its model
    made_with: list[dict[str, Any]] = field(default_factory=list)
    # of the succeeded: took the answer to an equal request of this job, at no cost
    deduplicated: int = 0
    cached: int = 0  # likewise of an earlier job
    # documents that were paid for again, as two lanes have answered them; in the cost
    answered_twice: int = 0
    twice_cost_usd: float = 0.0  # of `cost_usd`: what the answers cost that came second
    lanes: list[dict[str, Any]] = field(default_factory=list)  # where the job went, when and why
    # where all documents failed alike: why, and what to do
    advice: list[str] = field(default_factory=list)
    cost_by_lane: list[money.LaneCost] = field(default_factory=list)
    saved: money.Saved = field(default_factory=lambda: money.Saved(0.0, 0.0, 0.0, {}))
    batches: BatchesCreated | None = None  # None: its documents went into none
    # None: the rows of the job were not read for this form of the report
    prompt_sizes: PromptTokens | None = None
    known_usd: float = 0.0  # `cost_usd` without that of which no price is known
    visible_usd: float | None = None  # of `cost_usd`: what the outcomes took that are visible now
    # of `known_usd`: the rest, by why it is in no outcome
    spent_besides: dict[str, float] = field(default_factory=dict)
    # of a schedule's run: how it compares with the one before; None: it was not compared
    run_before: dict[str, Any] | None = None
    # by the rules of the job: see by_rules.py
    routes: Sequence[dict[str, Any]] = ()
    escalated: dict[str, Any] | None = None
    degraded: Sequence[dict[str, Any]] = ()

    @property
    def finished(self) -> int:
        return self.succeeded + self.dead

    @property
    def money(self) -> Money:
        return Money(self.known_usd, self.cost_usd is not None)

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        fields["cost_by_lane"] = money.as_json(self.cost_by_lane)
        fields["saved"] = self.saved.to_json()
        fields["batches"] = None if self.batches is None else self.batches._asdict()
        fields["prompt_sizes"] = None if self.prompt_sizes is None else self.prompt_sizes._asdict()
        return fields


def build(
    job: Job,
    counts: Counts,
    *,
    stats: Mapping[str, int],
    seconds: float | None = None,
    made_with: Iterable[MadeWith] = (),
    moves: Iterable[LaneMove] = (),
    lanes: Sequence[LaneCounts] = (),
    created: tuple[int, int] = (0, 0),
    sizes: PromptSizes | None = None,
    unread: tuple[int, int | None] = (0, 0),
    run_before: dict[str, Any] | None = None,
    savings: Iterable[Saving] = (),
    rules: ByRules | None = None,
) -> Report:
    """Build the report of a job.

    SQL decides what happened to documents; ``stats`` (Redis) adds what only the queue saw;
    ``created`` is how many batches providers took, with how many requests, ``unread`` how many of
    their answers were paid for in vain, and what these cost. ``seconds`` of work are what the
    caller measured, else the time from submit to the end.
    """
    spent = seconds if seconds is not None else (job.finished_at or time.time()) - job.created_at
    finished = counts.succeeded + counts.dead
    combinations = list(made_with)
    is_priced = not any(map(money.is_unpriced, combinations))
    spent_usd = money_of(counts, is_priced=is_priced)
    tally, lane = Tally.of_pin(job.source), job.lane
    by_lane = money.by_lane(counts, lanes, None if job.moves else lane, combinations)
    saved = money.saved(counts, by_lane, combinations, savings)
    return Report(
        job=job.job_key,
        state=str(job.state),
        total=job.total if job.total is not None else finished,
        succeeded=counts.succeeded,
        succeeded_after_retry=counts.succeeded_after_retry,
        dead=counts.dead,
        skipped=stats.get("skipped", 0),
        calls=max(counts.calls, stats.get("calls", 0)),
        retries=retries(stats),
        rate_limited=stats.get("rate_limited", 0),
        prompt_tokens=counts.prompt_tokens,
        completion_tokens=counts.completion_tokens,
        cost_usd=spent_usd.usd,
        seconds=round(spent, 3),
        items_per_second=round(finished / spent, 2) if spent > 0 else 0.0,
        dead_by_reason=dict(
            sorted(counts.dead_by_reason.items(), key=lambda entry: (-entry[1], entry[0]))
        ),
        retried_by_reason=retried_by_reason(stats),
        provider_cost_usd=money.cost_of_providers(by_lane),
        gpu_cost_usd=money.cost_of_engines(by_lane),
        repairs=stats.get("repairs", 0),
        fallbacks=stats.get("fallbacks", 0),
        spec_digest=job.digest,
        made_with=[one._asdict() for one in combinations],
        rows_cut=tally.cut,
        tokens_saved=saved_tokens(tally),
        deduplicated=counts.reused.get("dedup", 0),
        cached=counts.reused.get("cache", 0),
        answered_twice=counts.answered_twice,
        twice_cost_usd=round(counts.twice_microusd / MICRO, 6),
        known_usd=spent_usd.known_usd,
        visible_usd=money_of(counts.visible, is_priced=is_priced).usd,
        spent_besides={
            why: round(paid.cost_microusd / MICRO, 6)
            for why, paid in sorted(counts.by_kind.items())
        },
        **(rules or ByRules())._asdict(),
        lanes=lanes_of(moves),
        cost_by_lane=by_lane,
        saved=saved,
        batches=_batches(created, saved.batch_discount_usd, unread)
        if created[0] or packs(lane)
        else None,
        prompt_sizes=None if sizes is None else _prompt_tokens(sizes),
        run_before=run_before,
    )


def _prompt_tokens(sizes: PromptSizes) -> PromptTokens:
    return PromptTokens(
        [{"up_to": up_to, "documents": number} for up_to, number in sizes.histogram],
        [{"doc_id": doc_id, "prompt_tokens": tokens} for doc_id, tokens in sizes.largest],
    )


def _batches(
    created: tuple[int, int], saved_usd: float | None, unread: tuple[int, int | None]
) -> BatchesCreated:
    answers, microusd = unread
    return BatchesCreated(
        *created, saved_usd, answers, None if microusd is None else round(microusd / MICRO, 6)
    )
