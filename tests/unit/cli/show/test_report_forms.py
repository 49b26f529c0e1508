"""The report as Markdown and as a page: what is in it, and what no document can put there."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from penstock_cli.errors import UsageProblem
from penstock_cli.files import Form, form_of, show
from penstock_ledger import MadeWith
from penstock_ledger.model import Counts, Job, JobState, LaneCounts, Paid, Saving
from penstock_producer.reporting.account import Report, build
from penstock_producer.reporting.forms import markdown, page, plain, plain_text
from penstock_producer.reporting.timeline import Stretch, Timeline, percentiles, summed
from penstock_producer.reporting.words import (
    REASONS_SHOWN,
    effort_lines,
    lane_lines,
    saved_line,
)

NOW = 1_790_000_000.0
TIMELINE = Timeline(summed([(0, 4, 0), (2, 3, 3)], 10), percentiles([(100, 5), (900, 5)]))
HOSTILE = [
    "<script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    '" onload="alert(1)',
    "{{ 7 * 7 }}{% raw %}",
    "| a | b |\n# title [x](javascript:alert(1)) `code`",
    "red \x1b[31m \u202e mirrored \ud800",
]
VOID = {"meta", "rect", "polygon", "br"}


class Page(HTMLParser):
    """Tags, attributes and texts of a page; every tag must be closed where it was opened."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(data)


def report(key: str = "reviews", reasons: dict[str, int] | None = None) -> Report:
    job = Job(
        "id1", key, {"lane": "batch"}, {}, "", JobState.COMPLETED, None, 1, 10, 1000.0, 1030.0
    )
    found = Counts(7, 2, 3, reasons or {"http_400": 3}, 12, 100, 50, 1_500_000)
    lanes = [
        LaneCounts("api", 1, 3, 6, 40, 10, 500_000),
        LaneCounts("batch", 6, 0, 6, 60, 40, 1_000_000),
    ]
    made = [
        MadeWith(1, "batch", "default", "1.0", "", 0.5, 1.5, batch_discount=0.5),
        MadeWith(1, "api", "default", "1.0", "", 0.5, 1.5),
    ]
    return build(
        job,
        found,
        stats={"retried:timeout": 3},
        seconds=4.0,
        made_with=made,
        lanes=lanes,
        created=(2, 9),
        unread=(3, 500_000),
    )


def html(found: Report, timeline: Timeline = TIMELINE) -> str:
    return page(found, timeline, dlq_command="penstock dlq list reviews", now=NOW)


def test_the_page_has_the_account_with_a_chart_and_a_table_for_each_part() -> None:
    """Outcomes, reasons with the command that lists them, cost by lane, savings, progress and
    latency."""
    text = html(report())
    told = Page(text)
    cells = told.texts["td"]
    assert told.texts["h2"] == [
        "Outcomes",
        "Failed, by reason",
        "Cost by lane",
        "Progress",
        "Latency of answers",
        "Effort",
    ]
    for shown in ("5", "50 %", "$0.5000", "$1.00", "$1.50", "900 ms"):
        assert shown in cells
    assert told.texts["code"] == ["penstock dlq list reviews --reason http_400"]
    assert "$1.00 by the batch discount" in told.texts["li"]
    assert told.texts["figcaption"] == ["10 documents ended in 30 s, 3 of them failed."]
    assert told.tags.count("svg") == len(told.texts["title"]) - 1 == 3 + 1 + 2 + 5 + 1
    assert ("lang", "en") in told.attributes


@pytest.mark.parametrize("text", HOSTILE)
def test_what_documents_and_providers_say_is_text_on_the_page(text: str) -> None:
    """A key of a job and a reason of any kind make no tag, no attribute and no template."""
    told = Page(html(report(text, {text: 3})))
    assert set(told.tags) <= set(Page(html(report())).tags)
    assert not [
        name
        for name, _ in told.attributes
        if name.startswith("on") or name in ("src", "href", "style")
    ]
    assert "49" not in "".join(told.texts["th"])
    if text.startswith("<script"):
        assert text in told.texts["th"]


def test_the_page_needs_nothing_from_anywhere_and_may_load_nothing() -> None:
    """One file: its policy forbids everything but the style that stands in it, which is named by
    its digest."""
    text = html(report())
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = next(
        value or ""
        for name, value in Page(text).attributes
        if name == "content" and "default-src" in str(value)
    )
    assert (
        policy
        == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert not re.search(r"https?:|//|url\(|@import|<script|<link", text.replace("<!doctype", ""))


def test_a_job_without_an_end_is_a_page_too() -> None:
    """No document has ended: there is no chart of what is not there."""
    job = Job(
        "id1", "reviews", {"lane": "api"}, {}, "", JobState.RUNNING, None, 1, None, 1000.0, None
    )
    found = build(job, Counts(0, 0, 0, {}, 0, 0, 0, 0), stats={})
    told = Page(html(found, Timeline(summed([], 1), [])))
    assert told.texts["h2"] == ["Outcomes", "Effort"]
    assert "# Report of job reviews" in markdown(
        found, Timeline(summed([], 1), []), dlq_command="c", now=NOW
    )


def test_many_reasons_are_the_most_frequent_and_how_many_more() -> None:
    """A page stays a page, and no document is left out of its figures."""
    reasons = {f"reason_{number}": 100 - number for number in range(REASONS_SHOWN + 5)}
    told = Page(html(report(reasons=reasons)))
    assert "5 more reasons" in told.texts["th"]
    assert str(sum(list(reasons.values())[REASONS_SHOWN:])) in told.texts["td"]


def test_markdown_has_the_account_as_tables() -> None:
    """With the same figures as the page."""
    text = markdown(report(), TIMELINE, dlq_command="penstock dlq list reviews", now=NOW)
    assert "| succeeded at the first try | 5 | 50 % |" in text
    assert "| http\\_400 | `penstock dlq list reviews --reason http_400` | 3 |" in text
    assert "| batch | 6 | 60 | 40 | $1.00 |" in text
    assert "| together | 10 | 100 | 50 | $1.50 |" in text
    assert "| the batch discount | $1.00 |" in text
    assert "| 99 % | 900 ms |" in text


@pytest.mark.parametrize("text", HOSTILE)
def test_what_documents_say_is_text_in_markdown(text: str) -> None:
    """No cell ends early, and no renderer sees a tag, a link or a heading."""
    told = markdown(report(text, {text: 3}), TIMELINE, dlq_command="penstock dlq list x", now=NOW)
    cell = re.compile(r"(?<!\\)\|")
    failed = [
        line
        for line in told.split("## Failed")[1].split("##")[0].splitlines()
        if line.startswith("|")
    ]
    assert {len(cell.findall(line)) for line in failed} == {4}
    outside = re.sub(r"(`+)[^\n]*?\1(?!`)", "", told)
    assert not re.search(r"(?<!\\)[<>\[\]]", outside)
    assert len([line for line in told.splitlines() if line.startswith("# ")]) == 1


def test_money_is_counted_in_the_lane_that_answered() -> None:
    """What no lane is known of belongs to the job's own, and an unknown price is unknown."""
    found = report()
    assert [(one.lane, one.documents, one.cost_usd) for one in found.cost_by_lane] == [
        ("batch", 6, 1.0),
        ("api", 4, 0.5),
    ]
    assert found.to_json()["cost_by_lane"][0]["cost_usd"] == 1.0
    assert found.to_json()["batches"] == {
        "batches": 2,
        "requests": 9,
        "saved_usd": 1.0,
        "unread": 3,
        "unread_usd": 0.5,
    }
    job = Job("id1", "k", {"lane": "api"}, {}, "", JobState.COMPLETED, None, 1, 2, 0.0, 1.0)
    plain = build(
        job, Counts(2, 0, 0, {}, 2, 4, 4, 8), stats={}, lanes=[LaneCounts("api", 1, 0, 1, 2, 2, 4)]
    )
    assert [(one.lane, one.succeeded, one.calls) for one in plain.cost_by_lane] == [("api", 2, 2)]
    unpriced = build(
        job, Counts(2, 0, 0, {}, 2, 4, 4, 0), stats={}, made_with=[MadeWith(1, "api", "p", "1", "")]
    )
    assert (
        unpriced.cost_by_lane[0].cost_usd,
        unpriced.provider_cost_usd,
        unpriced.gpu_cost_usd,
    ) == (None, None, 0.0)
    hosted = build(
        Job("id1", "k", {"lane": "gpu"}, {}, "", JobState.COMPLETED, None, 1, 2, 0.0, 1.0),
        Counts(2, 0, 0, {}, 2, 4, 4, 3_000_000),
        stats={},
        made_with=[MadeWith(1, "gpu", "", "1", "vllm 1", usd_per_hour=2.0)],
    )
    assert (hosted.provider_cost_usd, hosted.gpu_cost_usd) == (0.0, 3.0)


def test_documents_without_a_lane_are_not_called_a_payment_besides() -> None:
    """Of a job that has moved, refused and cancelled documents stand apart from what lanes took
    that it has left."""
    moved = Job(
        "id1",
        "k",
        {"lane": "batch"},
        {},
        "",
        JobState.COMPLETED,
        None,
        1,
        10,
        0.0,
        1.0,
        None,
        "api",
        1,
    )
    lanes = [LaneCounts("api", 5, 0, 5, 50, 10, 500_000)]
    counts = Counts(
        5, 0, 2, {"invalid_json_line": 2}, 7, 70, 14, 700_000, beside=Paid(2, 20, 4, 200_000)
    )
    found = build(moved, counts, stats={}, lanes=lanes)
    assert [
        (one.lane, one.besides, one.documents, one.calls, one.cost_usd)
        for one in found.cost_by_lane
    ] == [
        ("api", False, 5, 5, 0.5),
        (None, True, 0, 2, 0.2),
        (None, False, 2, 0, 0.0),
    ]
    assert list(lane_lines(found.cost_by_lane)) == [
        "lane api: 5 documents, $0.5000",
        "besides, in lanes that the job has left: 0 documents, $0.2000",
        "without a lane (refused or cancelled, or of an earlier release): 2 documents, $0.00",
    ]
    assert [one["besides"] for one in found.to_json()["cost_by_lane"]] == [False, True, False]
    unmoved = build(dataclasses.replace(moved, moves=0), counts, stats={}, lanes=lanes)
    assert [(one.lane, one.documents, one.calls) for one in unmoved.cost_by_lane] == [("api", 7, 7)]


def test_what_was_not_asked_again_saved_what_it_would_have_cost() -> None:
    """By the price of its tokens; where there is no price, nothing is claimed."""
    job = Job("id1", "k", {"lane": "api"}, {}, "", JobState.COMPLETED, None, 1, 4, 0.0, 1.0)
    reused = {"dedup": (1_000_000, 100_000), "cache": (2_000_000, 0)}
    counts = Counts(4, 0, 0, {}, 2, 4, 4, 500, {"dedup": 1, "cache": 1}, reused)
    priced = build(job, counts, stats={}, made_with=[MadeWith(1, "api", "p", "1", "", 2.0, 8.0)])
    assert priced.saved[:3] == (0.0, 2.8, 4.0)
    in_batches = MadeWith(1, "batch", "p", "1", "", 2.0, 8.0, batch_discount=0.5)
    assert build(job, counts, stats={}, made_with=[in_batches]).saved[1:3] == (1.4, 2.0)
    unpriced = build(job, counts, stats={}, made_with=[MadeWith(1, "api", "p", "1", "")])
    assert unpriced.saved[:3] == (0.0, None, None)
    changed = [
        MadeWith(1, "api", "p", "1", "", 2.0, 8.0),
        MadeWith(1, "api", "p", "2", "", 3.0, 8.0),
    ]
    assert build(job, counts, stats={}, made_with=changed).saved[:3] == (0.0, 0.00025, 0.00025)


def test_what_tiers_and_prompt_caches_saved_is_said_and_what_they_added_as_well() -> None:
    """With how many answers; a price that is missing is said, and so are answers of a release that
    booked none of it. What changed nothing is left out."""
    job = Job("id1", "k", {"lane": "api"}, {}, "", JobState.COMPLETED, None, 1, 4, 0.0, 1.0)
    counts = Counts(4, 0, 0, {}, 4, 4, 4, 500)
    made = MadeWith(1, "api", "p", "1", "", 2.0, 8.0, notes_savings=True)
    savings = [
        Saving("prompt_cache", 3, 12_000, 5_000_000, 1),
        Saving("tier:fast", 2, 10),
        Saving("tier:flex", 3, 10, 1_500_000),
        Saving("tier:priority", 1, 10, -2_000_000),
        Saving("tier:scale", 1, 10, 0, 1),
    ]
    found = build(job, counts, stats={}, made_with=[made], savings=savings)
    assert list(saved_line(found.saved)) == [
        "saved: at least $5.00 (some prices unknown) by the provider's prompt cache (12,000 tokens "
        "read), $1.50 by the flex tier (3 answers), an unknown amount by the scale tier (1 answer)",
        "paid beyond ordinary prices: $2.00 for the priority tier (1 answer)",
    ]
    shown = found.to_json()["saved"]
    assert (shown["is_noted"], shown["by_cause"]["tier:priority"]) == (
        True,
        {"answers": 1, "tokens": 10, "saved_usd": -2.0, "known_usd": -2.0},
    )
    assert shown["by_cause"]["tier:scale"]["saved_usd"] is None
    before = build(job, counts, stats={}, made_with=[made, made._replace(notes_savings=False)])
    assert list(saved_line(before.saved)) == [
        "saved: an unknown amount by service tiers and prompt caches, before this release"
    ]
    assert not before.saved.is_noted


def test_a_course_is_flat_where_nothing_ended() -> None:
    """A pause of a night is no slope, and a clock that is late makes no negative time."""
    assert summed([(-1, 1, 0), (0, 1, 0), (3, 2, 1)], 10) == [
        Stretch(0, 0, 0),
        Stretch(10, 1, 0),
        Stretch(10, 2, 0),
        Stretch(30, 2, 0),
        Stretch(40, 4, 1),
    ]
    assert percentiles([]) == []
    assert [one.milliseconds for one in percentiles([(1, 99), (700, 1)])] == [1, 1, 1, 1, 700]


def test_the_form_is_as_asked_or_as_the_file_ends() -> None:
    """A form that does not exist is refused with those that do."""
    assert form_of("", None) is Form.TEXT
    assert form_of("", "s3://b/day.v2/report.HTML") is Form.HTML
    assert form_of("", "out/report.md") is Form.MARKDOWN
    assert form_of("text", "report.html") is Form.TEXT
    with pytest.raises(UsageProblem, match="text, json, markdown, html"):
        form_of("pdf", None)


def test_a_line_on_what_a_job_took_is_in_every_form() -> None:
    """A figure that gets its line there is on the terminal, in text, in Markdown and on the page."""
    found = report()
    lines = list(effort_lines(found))
    assert len(lines) >= 4
    screen = Console(file=io.StringIO(), width=1000)
    show(found, screen, dlq_command="")
    assert isinstance(screen.file, io.StringIO)
    text = plain_text(found, dlq_command="")
    tickets = markdown(found, TIMELINE, dlq_command="", now=NOW)
    cells = Page(html(found)).texts["li"]
    for one in lines:
        assert one in text
        assert one in screen.file.getvalue()
        assert f"- {plain(one)}\n" in tickets
        assert one in cells
