"""Sentences of the report that more than one of its forms has, and where its job comes from."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock_ledger.texts import SetOption, Text
from penstock_producer.prices import OF_TIER, PROMPT_CACHE
from penstock_producer.reporting.account import changes
from penstock_producer.reporting.advice import as_flag
from penstock_producer.reporting.by_rules import rule_lines
from penstock_producer.reporting.money import UNKNOWN, Money, per_million, usd_or_unknown
from penstock_producer.reporting.reasons import retried_line, reused_lines
from penstock_producer.reporting.text import count, counted, duration, one_line, safe, usd

__all__ = [
    "REASONS_SHOWN",
    "Reason",
    "batches_line",
    "besides_lines",
    "counted_batches",
    "effort_lines",
    "feeders_line",
    "feeders_of",
    "from_job_line",
    "lane_lines",
    "lane_name",
    "made_with_line",
    "milliseconds",
    "moment",
    "moves_in_words",
    "reasons_of",
    "saved_line",
    "saved_rows",
    "saved_words",
    "started_by_line",
    "twice_line",
]


if TYPE_CHECKING:
    from penstock_ledger.model import Feed, Job
    from penstock_producer.reporting.account import BatchesCreated, PromptTokens, Report
    from penstock_producer.reporting.money import LaneCost, Saved, SavedBy

    Shards = Sequence[tuple[Feed, str | None]]


OUTLIER = 8  # times the bound that half of the documents keep: a prompt that is longer is named
REASONS_SHOWN = 30  # on a page; the others are counted together
REASON_CHARS = 120
COST_OF = 1_000  # documents: what one costs is a fraction of a cent
SHARES_MOVED: Final[Mapping[str, str]] = {
    "dead": "dead letters",
    "withheld": "answers withheld",
    "cut": "answers cut at their limit",
}


class Reason(NamedTuple):
    """A reason why documents are dead letters."""

    reason: str
    documents: int
    command: str  # that lists them; none for those that are counted together


def reasons_of(report: Report, dlq_command: str) -> list[Reason]:
    """Return the reasons of dead letters, the most frequent first."""
    rows = list(report.dead_by_reason.items())
    shown = [
        Reason(
            one_line(reason, REASON_CHARS),
            number,
            f"{dlq_command} {as_flag(SetOption('reason', reason))}",
        )
        for reason, number in rows[:REASONS_SHOWN]
    ]
    rest = rows[REASONS_SHOWN:]
    if not rest:
        return shown
    return [
        *shown,
        Reason(f"{count(len(rest))} more reasons", sum(number for _, number in rest), ""),
    ]


def lane_lines(lanes: Sequence[LaneCost]) -> Iterator[str]:
    """Yield what each lane answered, where there was more than one."""
    for one in lanes if len(lanes) > 1 else ():
        name = lane_name(one) if one.lane is None else f"lane {lane_name(one)}"
        yield f"{name}: {counted(one.documents, 'document')}, {one.money.words}"


def lane_name(one: LaneCost) -> str:
    if one.besides:
        return "besides, in lanes that the job has left"
    return (
        "without a lane (refused or cancelled, or of an earlier release)"
        if one.lane is None
        else safe(one.lane)
    )


def besides_lines(report: Report) -> Iterator[str]:
    """Say what of the money is in no visible outcome."""
    for kind, words in _BESIDES.items():
        if kind in report.spent_besides:
            yield f"of it {Money(report.spent_besides[kind], True).words} for {words}"


_BESIDES: Final = {
    "superseded": "dead letters that were replayed since",
    "unread": "answers of lost batches, which were not read",
    "retried": "attempts at documents that are not finished",
    "prompt_cache": "explicit caches of prompts, made and kept",
    "waiting": "documents that wait for another batch",
    "forgotten": "attempts that were made again, as Redis had lost them",
}


def twice_line(report: Report) -> Iterator[str]:
    if report.answered_twice:
        yield (
            f"{count(report.answered_twice)} documents were answered twice, as the job has changed "
            f"its lane: {usd(report.twice_cost_usd)} of the cost"
        )


def prompts_lines(sizes: PromptTokens | None) -> Iterator[str]:
    """Yield how long prompts were, and which documents are far from the others."""
    documents = 0 if sizes is None else sum(int(one["documents"] or 0) for one in sizes.histogram)
    if sizes is None or not documents:
        return
    half, most = (_within(sizes, documents, share) for share in (0.5, 0.99))
    yield f"prompts of {_tokens(half)} in half of the documents, {_tokens(most)} in 99 %"
    far = [
        one
        for one in sizes.largest
        if half is not None and int(one["prompt_tokens"]) > OUTLIER * half
    ]
    if far:
        named = ", ".join(
            f"{one_line(str(one['doc_id']), 60)} ({count(int(one['prompt_tokens']))})"
            for one in far
        )
        yield Text(
            f"the longest prompts: {named} tokens; ",
            SetOption("max_prompt_tokens"),
            " keeps such documents from being sent",
        )


def _within(sizes: PromptTokens, documents: int, share: float) -> int | None:
    """Return the bound within which so many of the documents are; None where it is the last."""
    seen = 0
    for one in sizes.histogram:
        seen += int(one["documents"] or 0)
        if seen >= share * documents:
            return one["up_to"]
    return None


def _tokens(bound: int | None) -> str:
    return "any number of tokens" if bound is None else f"at most {count(bound)} tokens"


def batches_line(created: BatchesCreated | None) -> Iterator[str]:
    if created is not None and created.batches:
        yield f"{count(created.requests)} requests in {counted_batches(created.batches)}"
    if created is not None and created.unread:
        cost = (
            "of an unknown cost"
            if created.unread_usd is None
            else f"of up to {usd(created.unread_usd)}"
        )
        yield f"{count(created.unread)} answers {cost} in these were paid for and could not be read"


def counted_batches(number: int) -> str:
    return "1 batch" if number == 1 else f"{count(number)} batches"


def saved_rows(saved: Saved) -> list[tuple[str, str]]:
    """Return what saved money, and how much; what saved nothing is left out.

    What cost more has an amount below 0."""
    own = {
        "the batch discount": saved.batch_discount_usd,
        "answers to equal requests": saved.dedup_usd,
        "the cache": saved.cache_usd,
    }
    rows = [(name, usd_or_unknown(usd)) for name, usd in own.items() if usd is None or usd > 0]
    rows += [
        (_cause(cause, one), saved_words(one.money))
        for cause, one in saved.by_cause.items()
        if one.saved_usd != 0
    ]
    if not saved.is_noted:
        rows.append(("service tiers and prompt caches, before this release", UNKNOWN))
    return rows


def saved_words(money: Money) -> str:
    """Return an amount that may be below 0, as that of a tier that costs more."""
    if money.known_usd >= 0:
        return money.words
    return f"-{usd(-money.known_usd)}" if money.is_whole else UNKNOWN


def _cause(cause: str, one: SavedBy) -> str:
    if cause == PROMPT_CACHE:
        return f"the provider's prompt cache ({count(one.tokens)} tokens read)"
    name = safe(cause.removeprefix(OF_TIER))
    return f"the {name} tier ({counted(one.answers, 'answer')})"


def saved_line(saved: Saved) -> Iterator[str]:
    """Yield a line of what was saved, and one of what cost more."""
    less, more = list[str](), list[str]()
    for name, amount in saved_rows(saved):
        if amount.startswith("-"):
            more.append(f"{amount[1:]} for {name}")
        else:
            less.append(f"{'an unknown amount' if amount == UNKNOWN else amount} by {name}")
    if less:
        yield f"saved: {', '.join(less)}"
    if more:
        yield f"paid beyond ordinary prices: {', '.join(more)}"


def made_with_line(one: Mapping[str, Any]) -> str:
    """Return one combination in words: the release, what computed, and at which price."""
    who = safe(one["engine"]) if one["engine"] else f"provider {safe(one['provider'])}"
    return f"made with Penstock {safe(one['penstock'])} · {who} · {_price(one)}"


def _price(one: Mapping[str, Any]) -> str:
    if one["engine"]:
        return (
            f"{usd(one['usd_per_hour'])} an hour"
            if one["usd_per_hour"]
            else "price unknown (neither cost.usd_per_gpu_hour nor cost.card is set)"
        )
    per_input, per_output = one["usd_per_mtok_in"], one["usd_per_mtok_out"]
    if not per_input and not per_output:
        return "price unknown"
    return per_million(per_input or 0.0, per_output or 0.0)


def moment(at: float) -> str:
    """Return a time to the second, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def milliseconds(number: int) -> str:
    return f"{count(number)} ms" if number < 10_000 else duration(number / 1000)


def effort_lines(report: Report, *, saved: bool = False) -> Iterator[str]:
    """Yield what a job took besides time and calls, and what was changed on the way.

    A line here is in every form of the report, in its order. ``saved``: what was saved is among
    them; Markdown and the page have it in a table.
    """
    yield from rule_lines(report.routes, report.escalated, report.degraded)
    yield from batches_line(report.batches)
    yield from reused_lines(report.deduplicated, report.cached)
    if saved:
        yield from saved_line(report.saved)
    if (retried := retried_line(report.retried_by_reason)) is not None:
        yield retried
    yield from besides_lines(report)
    yield from twice_line(report)
    yield from prompts_lines(report.prompt_sizes)
    yield from dict.fromkeys(map(made_with_line, report.made_with))
    yield from changes(report.rows_cut, report.tokens_saved)
    yield from run_before_lines(report.run_before)


def run_before_lines(comparison: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield how a schedule's run compares with the one before, where it was compared."""
    if comparison is None or "moved" not in comparison:
        return
    before = f"the run before, job {comparison['before']}"
    if not comparison["moved"]:
        yield f"nothing has moved away from {before}"
    for sentence in moves_in_words(comparison):
        yield f"moved away from {before}: {sentence}"


def moves_in_words(comparison: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each figure that has moved, as a comparison is kept with its run."""
    return [_moved(**kept) for kept in comparison.get("moved", ())]


def _moved(figure: str, label: str | None, before: float, now: float, **_: float) -> str:
    if figure == "cost":
        was, is_now = (usd(of_one * COST_OF / 1e6) for of_one in (before, now))
        return f"cost of {COST_OF:,} documents: {was} before, now {is_now}"
    if figure == "tokens":
        return f"tokens of an answer: {before:,.0f} before, now {now:,.0f}"
    name = SHARES_MOVED.get(figure) or one_line(str(label), REASON_CHARS)
    return f"{name}: {before:.1%} before, now {now:.1%}"


def feeders_line(job: Job, shards: Shards, *, one_machine: bool) -> str:
    """Return one sentence on the feeders; empty for a job of which it need not be said.

    ``one_machine``: its database is a file of SQLite.
    """
    from penstock_producer.feed.feeder_plan import is_worth_telling, plan_feeders
    from penstock_producer.job.spec import JobSpec
    from penstock_producer.reporting.text import count, safe

    if job.total is None:
        return ""
    spec = JobSpec.accepted(job.spec)
    plan = plan_feeders(spec, job.total, 0, job.source, one_machine=one_machine)
    if not shards:
        return (
            f"read by {plan}"
            if is_worth_telling(spec, plan, job.total) and not job.state.final
            else ""
        )
    why = plan.why if spec.budget_usd is None else "one after the other, since it has a budget"
    read = sum(shard.exhausted for shard, _ in shards)
    leaders = Counter(owner for shard, owner in shards if owner is not None and not shard.exhausted)
    leading = ", ".join(
        f"{safe(owner)} leads {count(number)}" for owner, number in sorted(leaders.items())
    )
    parts = filter(None, (f"{count(read)} at their end", leading))
    return f"read by {len(shards)} feeders ({why}): {'; '.join(parts)}"


def feeders_of(shards: Shards) -> dict[str, Any] | None:
    """Return the feeders for programs; None where one feeder reads all of it."""
    if not shards:
        return None
    return {"number": len(shards), "at_their_end": sum(shard.exhausted for shard, _ in shards)}


def from_job_line(job: Job) -> str:
    """Return one sentence on the job whose outcomes this one reads.

    It is empty for a job with a source of its own.
    """
    from penstock_producer.reporting.text import one_line, safe

    if job.source.get("kind") != "job":
        return ""
    where = " and ".join(job.source["where"])
    chosen = f", where {one_line(where)}" if where else ""
    last, skipped = job.source["generation"], job.source.get("after_generation", 0)
    generations = (
        f"of generation {skipped + 1} to {last}" if skipped else f"up to generation {last}"
    )
    return f"over the outcomes of job {safe(job.source['job_key'])}, {generations}{chosen}"


def started_by_line(job: Job) -> str:
    """Return one sentence; empty for a job that was submitted by hand or by a service."""
    from penstock_producer.reporting.text import safe
    from penstock_producer.schedules.timetable import started_by

    found = started_by(job)
    if found is None:
        return ""
    name, planned = found
    return f"started by schedule {safe(name)} for {planned}"
