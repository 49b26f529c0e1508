"""What became of a job, as `report.json` and as text for people."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from penstock_cli.errors import EXIT_DEAD_LETTERS, EXIT_FAILED, EXIT_OK
from penstock_cli.show.changes import changes, saved_tokens
from penstock_cli.show.figures import MICRO, retried_by_reason
from penstock_cli.show.lanes import lanes_of
from penstock_cli.show.reasons import retried_line, reused_lines
from penstock_cli.show.text import asked_again, count, duration, percent, rate, safe, usd
from penstock_producer.job.lanes import has_own_model
from penstock_producer.tally import Tally

if TYPE_CHECKING:
    from rich.console import Console

    from penstock_ledger import LaneMove, MadeWith
    from penstock_ledger.model import Counts, Job


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
    cost_usd: float | None  # None: of some of it no price is known
    seconds: float  # of work: pauses between two runs of the same job do not count
    items_per_second: float
    dead_by_reason: dict[str, int]
    retried_by_reason: dict[str, int]  # attempts that were followed by another, or ended with their engine
    provider_cost_usd: float | None  # the part of `cost_usd` that providers' prices make
    gpu_cost_usd: float | None  # the part that the time of workers with a model of their own makes
    rows_cut: dict[str, int]  # rows whose text was cut as the job asks, by column
    tokens_saved: int  # by taking blanks out of prompts, estimated
    repairs: int = 0  # requests that showed a model what the schema had against its answer; among `calls`
    fallbacks: int = 0  # requests that went to the next model instead of a dead letter
    spec_digest: str = ""  # of the job's options and its source
    made_with: list[dict[str, Any]] = field(default_factory=list)  # releases, engines, prices; a result has its model
    deduplicated: int = 0  # of the succeeded: took the answer to an equal request of this job, at no cost
    cached: int = 0  # likewise of an earlier job
    answered_twice: int = 0  # documents that were paid for again, as two lanes have answered them; in the cost
    twice_cost_usd: float = 0.0  # of `cost_usd`: what the answers cost that came second
    lanes: list[dict[str, Any]] = field(default_factory=list)  # where the job went, when and why
    advice: list[str] = field(default_factory=list)  # where all documents failed alike: why, and what to do

    @property
    def finished(self) -> int:
        return self.succeeded + self.dead

    @property
    def exit_status(self) -> int:
        """0 all succeeded, 3 finished with dead letters, 1 anything else."""
        if self.state != "completed":
            return EXIT_FAILED
        return EXIT_DEAD_LETTERS if self.dead else EXIT_OK

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def build(
    job: Job,
    counts: Counts,
    *,
    stats: Mapping[str, int],
    seconds: float | None = None,
    made_with: Iterable[MadeWith] = (),
    moves: Iterable[LaneMove] = (),
) -> Report:
    """SQL decides what happened to documents; ``stats`` (Redis) adds what only the queue saw.

    ``seconds`` of work where the caller measured them, else the time from submit to the end.
    """
    spent = seconds if seconds is not None else (job.finished_at or time.time()) - job.created_at
    finished = counts.succeeded + counts.dead
    combinations = list(made_with)
    cost_usd = None if any(map(_is_unpriced, combinations)) else round(counts.cost_microusd / MICRO, 6)
    tally = Tally.of_pin(job.source)
    is_hosted = has_own_model(job.lane)
    return Report(
        job=job.job_key,
        state=str(job.state),
        total=job.total if job.total is not None else finished,
        succeeded=counts.succeeded,
        succeeded_after_retry=counts.succeeded_after_retry,
        dead=counts.dead,
        skipped=stats.get("skipped", 0),
        calls=max(counts.calls, stats.get("calls", 0)),
        retries=stats.get("retries", 0),
        rate_limited=stats.get("rate_limited", 0),
        prompt_tokens=counts.prompt_tokens,
        completion_tokens=counts.completion_tokens,
        cost_usd=cost_usd,
        seconds=round(spent, 3),
        items_per_second=round(finished / spent, 2) if spent > 0 else 0.0,
        dead_by_reason=dict(sorted(counts.dead_by_reason.items(), key=lambda entry: (-entry[1], entry[0]))),
        retried_by_reason=retried_by_reason(stats),
        provider_cost_usd=0.0 if is_hosted else cost_usd,
        gpu_cost_usd=cost_usd if is_hosted else 0.0,
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
        lanes=lanes_of(moves),
    )


def show(
    report: Report,
    console: Console,
    *,
    dlq_command: str,
    advice: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
) -> None:
    """The report for people: shares, the reasons of the dead letters, what it took, and where the files are."""
    from rich.table import Table
    from rich.text import Text

    console.print(_headline(report))
    if report.dead:
        table = Table("dead letters", "reason", box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
        for reason, number in report.dead_by_reason.items():
            table.add_row(Text(count(number), justify="right"), Text(safe(reason)))
        console.print(table)
        for text in advice:
            console.print(Text(text, style="yellow"), soft_wrap=True)
        console.print(Text.assemble("list them:  ", (dlq_command, "bold")), soft_wrap=True)
    for text in _effort(report):
        console.print(text, style="dim")
    for name, place in (files or {}).items():
        console.print(Text(f"{name:<10} {place}"), soft_wrap=True)


def _headline(report: Report) -> Any:
    from rich.text import Text

    parts: list[str | tuple[str, str]] = [
        (f"{percent(report.succeeded, report.total)} succeeded", "green" if report.succeeded else "default"),
        f", {percent(report.succeeded_after_retry, report.total)} after retry, ",
        (f"{percent(report.dead, report.total)} dead", "red" if report.dead else "default"),
        f"  ({count(report.succeeded)} + {count(report.dead)} of {count(report.total)} documents)",
    ]
    if report.state != "completed":
        parts.append((f"  {report.state}", "yellow"))
    return Text.assemble(*parts)


def _effort(report: Report) -> list[str]:
    retried = retried_line(report.retried_by_reason)
    return [
        f"{duration(report.seconds)} at {rate(report.items_per_second)} · {count(report.calls)} calls · "
        f"{count(report.retries)} retries · {count(report.rate_limited)} rate limited"
        f"{asked_again(report.repairs, report.fallbacks)}",
        f"{count(report.prompt_tokens)} tokens in, {count(report.completion_tokens)} out · {_cost(report)}",
        *reused_lines(report.deduplicated, report.cached),
        *([] if retried is None else [retried]),
        *_twice(report),
        *dict.fromkeys(map(_made_with, report.made_with)),
        *changes(report.rows_cut, report.tokens_saved),
    ]


def _twice(report: Report) -> list[str]:
    if not report.answered_twice:
        return []
    return [
        f"{count(report.answered_twice)} documents were answered twice, as the job has changed its lane: "
        f"{usd(report.twice_cost_usd)} of the cost"
    ]


def _cost(report: Report) -> str:
    if report.cost_usd is None:
        return "cost unknown, as a price is missing"
    return f"{usd(report.cost_usd)}{' of GPU time' if report.gpu_cost_usd else ''}"


def _is_unpriced(one: MadeWith) -> bool:
    """Whether what was made so has no known price. A price of 0 is what releases before this one wrote for that."""
    return not (one.usd_per_hour if one.engine else one.usd_per_mtok_in or one.usd_per_mtok_out)


def _made_with(one: Mapping[str, Any]) -> str:
    """Of one combination: the release, what computed, and at which price."""
    who = safe(one["engine"]) if one["engine"] else f"provider {safe(one['provider'])}"
    return f"made with Penstock {safe(one['penstock'])} · {who} · {_price(one)}"


def _price(one: Mapping[str, Any]) -> str:
    if one["engine"]:
        return (
            f"{usd(one['usd_per_hour'])} an hour"
            if one["usd_per_hour"]
            else "price unknown (cost.usd_per_gpu_hour is not set)"
        )
    per_input, per_output = one["usd_per_mtok_in"], one["usd_per_mtok_out"]
    if not per_input and not per_output:
        return "price unknown"
    return f"{usd(per_input)} in, {usd(per_output)} out per million tokens"
