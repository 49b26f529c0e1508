"""One job, as its page shows it: figures in words, what slows it down, and what helps."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from penstock_gateway.callers.caller import error_for, shown_source, without_places
from penstock_gateway.dashboard.desk import JobSeenNow
from penstock_gateway.dashboard.fleet_view import serve_again, start_of, stops
from penstock_gateway.dashboard.foreign import answer_of
from penstock_gateway.dashboard.jobs_view import ago
from penstock_gateway.render import Chart, Part, parts, rate_chart
from penstock_ledger import Job
from penstock_ledger.reasons import examples_of, explain
from penstock_producer.job.lanes import has_own_model, packs
from penstock_producer.job.options import OPTIONS
from penstock_producer.reporting.advice import FIXES, on_page
from penstock_producer.reporting.engines import engines_line, engines_of
from penstock_producer.reporting.pauses import advice_for, pause_steps
from penstock_producer.reporting.reasons import (
    INTERRUPTED,
    Wait,
    cause_line,
    held_budget,
    held_by_calls,
    held_by_tenant,
    in_hooks,
    interrupted_line,
    latest_cause,
    retried_line,
)
from penstock_producer.reporting.text import argument, count, duration, one_line, percent, rate, usd
from penstock_producer.reporting.words import (
    batches_line,
    besides_lines,
    feeders_line,
    from_job_line,
    lane_name,
    made_with_line,
    milliseconds,
    moment,
    saved_line,
    started_by_line,
    twice_line,
)

__all__ = ["JobView", "Note", "Reason", "job_view", "options_told"]


REASON_CHARS: Final = 800
REASONS_SHOWN: Final = 30
OPTION_CHARS: Final = 2_000
ANSWER_CHARS: Final = 240  # of one of the latest
CENTS: Final = 1e-9
_HIDDEN_OPTIONS: Final = frozenset({"response_schema", "examples"})  # too long for one line


class Tile(NamedTuple):
    name: str
    figure: str
    more: str = ""


class Tier(NamedTuple):
    kind: str
    name: str
    number: str
    share: str


class Reason(NamedTuple):
    """A reason why documents are dead letters."""

    reason: str
    number: str
    share: str
    bar: Sequence[Part]
    fix: str


class Note(NamedTuple):
    """A note that a person should read first. ``kind``: warn or bad, or empty."""

    kind: str
    text: str
    fix: str = ""
    command: str = ""


class Latest(NamedTuple):
    """One of the answers that came last."""

    doc_id: str
    name: str
    text: str
    took: str


class Move(NamedTuple):
    at: str
    before: str
    lane: str
    reason: str
    why: str


class LaneRow(NamedTuple):
    lane: str
    documents: str
    tokens: str
    cost: str


@dataclass(frozen=True, slots=True)
class JobView:
    job_id: str
    key: str
    state: str
    ended: bool
    pausable: bool
    resumable: bool
    cancellable: bool
    facts: Sequence[str]
    told: Sequence[str]
    notes: Sequence[Note]
    bar: Sequence[Part]
    share: str
    tiles: Sequence[Tile]
    tiers: Sequence[Tier]
    reasons: Sequence[Reason]
    dead: int
    has_outcomes: bool
    latest: Sequence[Latest]
    spoken: str  # to those who hear the page, now and then
    chart: Chart | None
    counting: bool
    latencies: Sequence[tuple[str, str]]
    moves: Sequence[Move]
    lanes: Sequence[LaneRow]
    effort: Sequence[str]
    options: Sequence[tuple[str, str]]
    read_at: str


def job_view(seen: JobSeenNow) -> JobView:
    at, job, report = time.time(), seen.job, seen.report
    return JobView(
        job_id=job.job_id,
        key=one_line(job.job_key, REASON_CHARS),
        state=_state(seen),
        ended=job.state.final,
        pausable=job.state == "running",
        resumable=job.state == "paused",
        cancellable=job.state in ("running", "paused"),
        facts=_facts(seen, at),
        told=[one_line(line, REASON_CHARS) for line in _told(seen)],
        notes=list(_notes(seen, at)),
        bar=parts(
            [
                ("good", report.succeeded - report.succeeded_after_retry),
                ("again", report.succeeded_after_retry),
                ("bad", report.dead),
            ],
            report.total,
        ),
        share=percent(report.finished, report.total),
        tiles=_tiles(seen, at),
        tiers=_tiers(seen),
        reasons=_reasons(seen),
        dead=report.dead,
        has_outcomes=report.finished > 0,
        latest=_latest(seen),
        spoken=_spoken(seen),
        chart=None if seen.timeline is None else rate_chart(seen.timeline.stretches),
        counting=seen.timeline is None and report.finished > 0,
        latencies=_latencies(seen),
        moves=[
            Move(
                moment(move.at),
                move.before or "",
                move.lane,
                move.reason,
                one_line(move.why, REASON_CHARS),
            )
            for move in seen.moves
        ],
        lanes=_lanes(seen),
        effort=_effort(seen),
        options=_options(seen),
        read_at=moment(at),
    )


def _state(seen: JobSeenNow) -> str:
    return INTERRUPTED if seen.is_interrupted else str(seen.job.state)


def _facts(seen: JobSeenNow, now: float) -> list[str]:
    job, spec = seen.job, seen.job.spec
    said = [
        f"id {job.job_id}",
        f"submitted {ago(job.created_at, now)}",
        f"tenant {spec['tenant']}" if spec.get("tenant") else "",
        f"model {spec['model']}" if spec.get("model") else "",
        f"provider {spec['provider']}" if spec.get("provider") else "",
        f"lane {job.lane}",
        f"generation {job.generation}" if job.generation > 1 else "",
    ]
    return [one_line(text, 200) for text in said if text]


def _told(seen: JobSeenNow) -> Iterator[str]:
    job = seen.job
    lines = (
        started_by_line(job),
        from_job_line(job),
        feeders_line(job, seen.shards, one_machine=seen.one_machine),
    )
    yield from (line for line in lines if line)
    if seen.batches:
        yield seen.batches
    engines = engines_of(seen.workers, job.lane) if not job.state.final else None
    if engines is not None:
        yield engines_line(engines)


def _notes(seen: JobSeenNow, now: float) -> Iterator[Note]:
    """Yield what is to be said about the job, the most serious first."""
    job, key = seen.job, argument(seen.job.job_key)
    if job.state == "failed":
        yield Note("bad", f"The job has failed: {_why(job)}")
    elif job.state == "paused":
        yield from _paused(seen, now)
    elif job.state == "cancelling":
        yield Note(
            "warn",
            "The job is being cancelled: what has not begun becomes dead letters `cancelled`.",
        )
    if seen.redis_is_away and not job.state.final and not seen.is_interrupted:
        yield Note(
            "warn",
            "Redis does not answer: queues, workers and quotas are not shown.",
            "Start it, or correct redis_url; nothing of the job is lost.",
        )
    for sentence in seen.batch_troubles:
        yield Note("warn", f"{sentence[:1].upper()}{sentence[1:]}.")
    if seen.is_interrupted:
        said = interrupted_line(job, one_machine=seen.one_machine)
        yield Note("warn", f"{said[:1].upper()}{said[1:]}.")
    if job.state == "running" and not (seen.is_interrupted and seen.one_machine):
        yield from _slow(seen, now, key)


def _paused(seen: JobSeenNow, now: float) -> Iterator[Note]:
    job = seen.job
    advice = advice_for(job.pause)
    if job.pause is None or not advice:
        (step,) = pause_steps(job, seen.in_state, now)
        fix = f"{step.text[:1].upper()}{step.text[1:]}"
        yield Note("warn", f"Paused: {_why(job)}", fix, step.command)
        return
    yield Note(
        "warn",
        "Paused: "
        f"{one_line(without_places(job, explain(job.pause, examples=False)), REASON_CHARS)}",
    )
    for example in examples_of(job.pause):
        yield Note("", one_line(without_places(job, f"For example {example}"), REASON_CHARS))
    for one in advice:
        set_to = "" if one.action is None else f" (Limits: {one.action.field} {one.action.value})"
        yield Note("", f"What to do: {on_page(one.text)}{set_to}")


def _why(job: Job) -> str:
    return one_line(error_for(job, job.reason) or "no reason was recorded", REASON_CHARS)


def _slow(seen: JobSeenNow, now: float, key: str) -> Iterator[Note]:
    job, lane, alike = seen.job, seen.job.lane, _all_alike(seen)
    if alike is not None:
        yield alike
    for wait in seen.waits:
        yield _waits(wait, one_machine=seen.one_machine)
    if not packs(lane) and (held := held_by_tenant(job, seen.account)) is not None:
        yield Note("warn", f"{held[:1].upper()}{held[1:]}.")
    budget = job.spec.get("budget_usd")
    if not packs(lane) and budget is not None:
        held_here = (
            held_budget(budget, seen.account, seen.held),
            held_by_calls(budget, seen.account, seen.held),
        )
        for text in filter(None, held_here):
            yield Note("warn", f"{text[:1].upper()}{text[1:]}.")
    for sentence in in_hooks(
        seen.workers, (job.spec.get("preprocess"), job.spec.get("postprocess"))
    ):
        yield Note("warn", sentence)
    if seen.quota is not None and not has_own_model(lane):
        for text, fix, command in stops(seen.quota, seen.in_state):
            yield Note("warn", f"Provider {one_line(seen.quota.quota_id)}: {text}", fix, command)
    if not packs(lane) and (cause := latest_cause(seen.causes, now)) is not None:
        yield Note("", f"The last failure: {cause_line(cause, now)}")


def _waits(wait: Wait, *, one_machine: bool) -> Note:
    """Return why documents wait, with what to do as a text of its own where there is something.

    On one machine `penstock serve` starts all workers.
    """
    said = on_page(wait.said)
    text = f"{said[:1].upper()}{said[1:]}."
    if wait.code == "no_worker":
        lane = wait.params["lane"]
        text = f"No worker serves lane {one_line(lane)}: its documents wait."
        if one_machine:
            again = serve_again(lane)
            return Note("warn", text, f"Move the job to a lane that has workers, or {again}.")
        return Note("warn", text, "Start one:", start_of(lane))
    is_usual = wait.code in ("all_delayed", "slots_taken", "first_hundred")
    return Note("" if is_usual else "warn", text)


def _all_alike(seen: JobSeenNow) -> Note | None:
    report = seen.report
    if report.succeeded or report.dead < 10 or len(report.dead_by_reason) != 1:
        return None
    reason = next(iter(report.dead_by_reason))
    text = f"The first {count(report.dead)} documents all failed alike: {one_line(reason)}."
    return Note(
        "bad",
        text,
        on_page(
            FIXES.get(reason, "Look at one of its dead letters, which says what the provider said.")
        ),
    )


def _tiles(seen: JobSeenNow, now: float) -> list[Tile]:
    job, report = seen.job, seen.report
    tried = report.finished
    whole = "open" if job.total is None else count(report.total)
    tiles = [Tile("documents", f"{count(tried)}", f"of {whole}")]
    if job.state.final:
        tiles.append(Tile("took", duration(report.seconds)))
        tiles.append(Tile("speed", rate(report.items_per_second), "on average"))
    else:
        tiles += _moving(seen, now)
    tokens = report.prompt_tokens + report.completion_tokens
    per_second = (
        tokens / report.seconds if job.state.final and report.seconds else seen.tokens_per_second
    )
    spoken = "" if per_second is None else f"{count(round(per_second))}/s"
    tiles.append(
        Tile(
            "tokens", count(tokens), spoken or f"{count(report.completion_tokens)} of them answers"
        )
    )
    tiles.append(Tile("failed", percent(report.dead, tried), f"{count(report.dead)} dead letters"))
    tiles.append(
        Tile(
            "retries",
            count(report.retries),
            f"{count(report.rate_limited)} rate limited" if report.retries else "",
        )
    )
    tiles += _latency_tiles(seen)
    return [*tiles, *_cost_tiles(seen)]


def _moving(seen: JobSeenNow, now: float) -> list[Tile]:
    job, report = seen.job, seen.report
    elapsed = max(0.0, now - job.created_at)
    speed = (
        seen.per_second
        if seen.per_second is not None
        else (report.finished / elapsed if elapsed > 0 else 0.0)
    )
    more = "" if seen.per_second is not None else "on average"
    left = None
    if job.total is not None and speed > 0 and job.state == "running":
        left = max(0, report.total - report.finished) / speed
    tiles = [
        Tile("speed", rate(speed), more),
        Tile(
            "time left",
            "unknown" if left is None else duration(left),
            f"{duration(elapsed)} so far",
        ),
    ]
    if seen.depth is not None:
        depth = seen.depth
        queued = depth.queued + depth.relayed
        tiles.append(
            Tile(
                "in the lane",
                f"{count(queued)} queued",
                f"{count(depth.unacked - depth.relayed)} held by workers",
            )
        )
    return tiles


def _latency_tiles(seen: JobSeenNow) -> list[Tile]:
    found = {
        one.percent: one.milliseconds for one in (seen.timeline.latencies if seen.timeline else ())
    }
    if 50 not in found or 95 not in found:
        return []
    return [Tile("answers take", milliseconds(found[50]), f"95 % within {milliseconds(found[95])}")]


def _cost_tiles(seen: JobSeenNow) -> list[Tile]:
    job, report = seen.job, seen.report
    cost = report.cost_usd
    budget = job.spec.get("budget_usd")
    of_budget = f"of a budget of {usd(budget)}" if isinstance(budget, (int, float)) else ""
    tiles = [Tile("cost", report.money.words, of_budget or "no budget is set")]
    if not job.state.final and cost is not None and report.finished and job.total is not None:
        projected = cost * report.total / report.finished
        if math.isfinite(projected) and projected > CENTS:
            tiles.append(Tile("projected cost", usd(projected), "at the mean so far"))
    return tiles


def _tiers(seen: JobSeenNow) -> list[Tier]:
    report = seen.report
    rows = [
        ("good", "succeeded at the first try", report.succeeded - report.succeeded_after_retry),
        ("again", "succeeded after retry", report.succeeded_after_retry),
        ("bad", "failed", report.dead),
    ]
    if open_ones := report.total - report.finished:
        rows.append(("open", "not finished", open_ones))
    return [
        Tier(kind, name, count(number), percent(number, report.total))
        for kind, name, number in rows
    ]


def _reasons(seen: JobSeenNow) -> list[Reason]:
    rows = list(seen.report.dead_by_reason.items())
    most = max((number for _, number in rows), default=1)
    return [
        Reason(
            reason,
            count(number),
            percent(number, seen.report.dead),
            parts([("bad", number)], most),
            on_page(FIXES.get(reason, "")),
        )
        for reason, number in rows[:REASONS_SHOWN]
    ]


def _latest(seen: JobSeenNow) -> list[Latest]:
    return [
        Latest(
            one.key.doc_id,
            one_line(one.key.doc_id, REASON_CHARS),
            one_line(answer_of(one.body).head, ANSWER_CHARS) if one.body else "(a long answer)",
            milliseconds(one.latency_ms) if one.latency_ms else "",
        )
        for one in seen.latest
    ]


def _spoken(seen: JobSeenNow) -> str:
    report = seen.report
    of = "" if seen.job.total is None else f" of {count(report.total)}"
    ended = f"{count(report.finished)}{of} documents have ended"
    return f"{_state(seen)}: {ended}, {count(report.dead)} of them failed."


def _latencies(seen: JobSeenNow) -> list[tuple[str, str]]:
    latencies = seen.timeline.latencies if seen.timeline else ()
    return [(f"{one.percent} %", milliseconds(one.milliseconds)) for one in latencies]


def _lanes(seen: JobSeenNow) -> list[LaneRow]:
    return [
        LaneRow(
            one_line(lane_name(one)),
            count(one.documents),
            f"{count(one.prompt_tokens)} in, {count(one.completion_tokens)} out",
            one.money.words,
        )
        for one in seen.report.cost_by_lane
    ]


def _effort(seen: JobSeenNow) -> list[str]:
    report = seen.report
    retried = retried_line(report.retried_by_reason)
    lines = [
        f"{count(report.calls)} calls",
        *([] if retried is None else [retried]),
        *batches_line(report.batches),
        *saved_line(report.saved),
        *besides_lines(report),
        *twice_line(report),
        *dict.fromkeys(made_with_line(one) for one in report.made_with),
    ]
    return [one_line(line, REASON_CHARS) for line in lines]


def _options(seen: JobSeenNow) -> list[tuple[str, str]]:
    """Return what the job was submitted with."""
    source = shown_source(seen.job) or str(seen.job.source.get("kind") or "")
    first = [("source", one_line(source, OPTION_CHARS))] if source else []
    return [*first, *options_told(seen.job.spec)]


def options_told(spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the options of a job that are not as usual, each with its value in words."""
    return [
        (name.replace("_", " "), one_line(_option(value), OPTION_CHARS))
        for name, value in spec.items()
        if _is_told(name, value)
    ]


def _option(value: object) -> str:
    """Return a value as a job spec file has it."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return (
        json.dumps(value, ensure_ascii=False)
        if isinstance(value, (dict, list, tuple))
        else str(value)
    )


def _is_told(name: str, value: object) -> bool:
    if name in OPTIONS and value == OPTIONS[name].default:
        return False
    return value not in (None, "", False, [], {}) and name not in _HIDDEN_OPTIONS
