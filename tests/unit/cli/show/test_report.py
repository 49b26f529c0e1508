"""Reports, figures and progress lines."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from penstock_cli.errors import EXIT_DEAD_LETTERS, EXIT_FAILED, EXIT_OK
from penstock_cli.files import exit_status, show, write_report
from penstock_cli.run.watch import STALL_NOTICE_S, Stall
from penstock_cli.show.figures import COUNT_SHARE, Counter, JobFigures, KeptFigures, Speed
from penstock_cli.show.progress import LINE_EVERY_S, Lines, line, panel
from penstock_ledger import MadeWith
from penstock_ledger.model import Counts, Job, JobState
from penstock_producer.reporting.account import build

FIELDS = [
    *(
        "job",
        "state",
        "total",
        "succeeded",
        "succeeded_after_retry",
        "dead",
        "skipped",
        "calls",
        "retries",
    ),
    *(
        "rate_limited",
        "prompt_tokens",
        "completion_tokens",
        "cost_usd",
        "seconds",
        "items_per_second",
    ),
    *(
        "dead_by_reason",
        "retried_by_reason",
        "provider_cost_usd",
        "gpu_cost_usd",
        "rows_cut",
        "tokens_saved",
    ),
    *(
        "repairs",
        "fallbacks",
        "spec_digest",
        "made_with",
        "deduplicated",
        "cached",
        "answered_twice",
        "twice_cost_usd",
    ),
    *(
        "lanes",
        "advice",
        "cost_by_lane",
        "saved",
        "batches",
        "prompt_sizes",
        "known_usd",
        "visible_usd",
        "spent_besides",
        "run_before",
        "routes",
        "escalated",
        "degraded",
    ),
]


def job(state: JobState = JobState.COMPLETED, total: int | None = 10) -> Job:
    return Job("id1", "reviews", {"lane": "api"}, {}, "", state, None, 1, total, 1000.0, 1020.0)


def counts(succeeded: int = 8, dead: int = 2, reasons: dict[str, int] | None = None) -> Counts:
    return Counts(succeeded, 1, dead, reasons or {"http_400": dead}, 12, 100, 50, 1_500_000)


def rendered(renderable: object) -> str:
    console = Console(file=io.StringIO(), width=100, highlight=False)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_report_json_has_the_promised_fields_in_order(tmp_path: Path) -> None:
    """Other tools read report.json: its fields are a contract."""
    report = build(
        job(),
        counts(),
        stats={"retried:timeout": 3, "rate_limited": 2, "skipped": 1, "calls": 11},
        seconds=4.0,
    )
    write_report(report, str(tmp_path))
    stored = json.loads((tmp_path / "report.json").read_text())
    assert list(stored) == FIELDS
    assert stored["job"] == "reviews"
    assert (stored["cost_usd"], stored["items_per_second"], stored["calls"]) == (1.5, 2.5, 12)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_the_report_says_what_was_asked_again_and_what_made_the_results() -> None:
    """Repairs and fallbacks stand beside retries where there are any; release, provider and prices
    are said once."""
    console = Console(file=io.StringIO(), width=140, highlight=False)
    made = [
        MadeWith(1, "api", "default", "1.0", "", 0.5, 1.5),
        MadeWith(2, "api", "default", "1.0", "", 0.5, 1.5),
    ]
    made.append(MadeWith(2, "gpu", "", "1.1", "vllm 0.32.0", usd_per_hour=2.0))
    report = build(
        job(), counts(), stats={"repairs": 5, "fallbacks": 2}, seconds=4.0, made_with=made
    )
    show(report, console, dlq_command="")
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "0 rate limited · 5 asked again for the schema · 2 asked of another model" in text
    assert text.count("made with Penstock 1.0 · provider default") == 1
    assert "made with Penstock 1.1 · vllm 0.32.0" in text
    assert json.loads(json.dumps(report.to_json()))["made_with"][2]["usd_per_hour"] == 2.0
    show(build(job(), counts(), stats={}), console, dlq_command="")
    assert console.file.getvalue().count("asked") == 2


def test_exit_status_follows_the_outcome() -> None:
    """0 all succeeded, 3 with dead letters, 1 when the job did not complete."""
    assert exit_status(build(job(), counts(10, 0), stats={})) == EXIT_OK
    assert exit_status(build(job(), counts(), stats={})) == EXIT_DEAD_LETTERS
    assert exit_status(build(job(JobState.CANCELLED), counts(), stats={})) == EXIT_FAILED
    assert exit_status(build(job(JobState.PAUSED), counts(10, 0), stats={})) == EXIT_FAILED


def test_the_report_for_people_shows_shares_reasons_and_the_next_command() -> None:
    """It says what failed, why, and what to type."""
    console = Console(file=io.StringIO(), width=100, highlight=False)
    report = build(
        job(),
        counts(7, 3, {"[red]odd\x1b[0m": 1, "http_400": 2}),
        stats={"retried:timeout": 3},
        seconds=4.0,
    )
    show(
        report,
        console,
        dlq_command="penstock dlq list reviews",
        files={"results": "/x/output.jsonl"},
    )
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "70 % succeeded, 10 % after retry, 30 % dead  (7 + 3 of 10 documents)" in text
    assert text.index("http_400") < text.index("[red]odd\\x1b[0m")
    assert "penstock dlq list reviews" in text
    assert "/x/output.jsonl" in text
    assert "\x1b" not in text


def test_progress_line_and_panel_carry_the_same_figures() -> None:
    """A log and a terminal tell the same story."""
    figures = JobFigures(
        total=10_000,
        succeeded=1200,
        dead=34,
        retries=5,
        claimed=256,
        per_second=200.0,
        cost_microusd=500_000,
    )
    text = line(figures)
    assert text.startswith("12.3 %  1,234 of 10,000 · 200/s, 44 s left · claimed 256")
    box = rendered(panel(figures, "reviews"))
    for shown in (
        "1,234 of 10,000",
        "44 s left",
        "claimed 256",
        "dead letters 34",
        "retries 5",
        "$0.5000",
    ):
        assert shown in text
        assert shown in box


def test_lines_come_at_their_pace() -> None:
    """A log gets one line every few seconds however often the figures are looked at."""
    now = [100.0]
    console = Console(file=io.StringIO(), width=200)
    lines = Lines(console, clock=lambda: now[0])
    for _ in range(11):
        lines.show(JobFigures(total=10))
        now[0] += LINE_EVERY_S / 5
    assert isinstance(console.file, io.StringIO)
    assert len(console.file.getvalue().splitlines()) == 3


def test_an_open_job_has_no_end_in_sight() -> None:
    """Without a total, nothing pretends to know what is left."""
    assert "still open" in line(JobFigures(total=None, succeeded=5, per_second=3.0))
    assert "left" not in line(JobFigures(total=None, succeeded=5, per_second=3.0))


def test_counting_rows_takes_a_bounded_share_of_the_time() -> None:
    """A count that takes a second is repeated only after twenty; Redis moves the figures in
    between."""
    now = [0.0]
    stats = {"succeeded": 100}
    taken: list[float] = []

    def slow_count() -> Counts:
        taken.append(now[0])
        now[0] += 1.0
        return counts()

    counter = Counter(slow_count, lambda: stats, clock=lambda: now[0])
    assert counter.look()[1] == {"succeeded": 0}
    stats["succeeded"] = 130
    now[0] = 1.0 / COUNT_SHARE - 0.5
    assert counter.look()[1] == {"succeeded": 30}
    stats["succeeded"] = 20
    assert counter.look()[1] == {"succeeded": 0}
    now[0] = 1.0 / COUNT_SHARE
    counter.look()
    assert taken == [0.0, 20.0]


def test_speed_is_that_of_the_last_seconds() -> None:
    """An hour of pause does not slow down the figure for the present."""
    speed = Speed(span_s=10)
    assert speed.update(0, 0) == 0.0
    assert speed.update(5, 50) == 10.0
    assert speed.update(5000, 50) < 1
    latest = 0.0
    for second in range(1, 20):
        latest = speed.update(5000 + second, 50 + 20 * second)
    assert latest == 20.0


def test_kept_figures_survive_and_add_up(tmp_path: Path) -> None:
    """A resumed job reports the work of all its runs, and damage to the file costs only
    decoration."""
    path = tmp_path / "id1.json"
    KeptFigures.load(path).save(10.0, {"calls": 20, "retried:timeout": 5})
    kept = KeptFigures.load(path)
    assert kept.seconds == 10.0
    assert kept.merged({"calls": 25, "retried:timeout": 3}) == {
        "calls": 25,
        "rate_limited": 0,
        "skipped": 0,
        "repairs": 0,
        "fallbacks": 0,
        "escalations": 0,
        "retried:timeout": 5,
    }
    path.write_text("{]")
    assert KeptFigures.load(path).seconds == 0.0


def test_a_stall_is_told_once_and_only_when_tries_fail() -> None:
    """A provider that went away is named after a while, not every second; slow answers are no
    stall."""
    now = [0.0]
    stall = Stall(clock=lambda: now[0])
    assert stall.notice(JobFigures(total=10, succeeded=1, retries=5)) is None
    now[0] = STALL_NOTICE_S
    assert stall.notice(JobFigures(total=10, succeeded=1, retries=5)) is None
    told = stall.notice(JobFigures(total=10, succeeded=1, retries=25))
    assert told is not None
    assert "20 attempts have failed" in told
    assert stall.notice(JobFigures(total=10, succeeded=1, retries=99)) is None
    assert stall.notice(JobFigures(total=10, succeeded=2, retries=99)) is None
    now[0] = 2 * STALL_NOTICE_S
    assert stall.notice(JobFigures(total=10, succeeded=2, retries=100)) is not None
