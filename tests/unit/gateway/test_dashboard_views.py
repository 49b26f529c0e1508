"""What the dashboard's pages say, without a browser or a server."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from starlette.requests import Request

from penstock_gateway.dashboard.dead_letters_view import alike, groups, members
from penstock_gateway.dashboard.desk import AT_ONCE, Speeds, Timelines, in_state_of
from penstock_gateway.dashboard.fleet_view import (
    lane_views,
    price_rows,
    quota_rows,
    spend_rows,
    total_of,
)
from penstock_gateway.dashboard.foreign import MOST_CHARS, answer_of, json_text, prompt_of, shown
from penstock_gateway.dashboard.jobs_view import ago, job_rows, place_in, place_text, tabs
from penstock_gateway.dashboard.viewer import check_origin
from penstock_gateway.refused import Refused
from penstock_gateway.render import asset_path, parts, rate_chart
from penstock_ledger import (
    Counts,
    DeadLetterLine,
    Depth,
    Job,
    JobPlace,
    JobState,
    MadeWith,
    QuotaSeen,
    Spending,
    WorkerSeen,
)
from penstock_ledger.in_redis.seen import YieldsSeen
from penstock_producer import SpecError
from penstock_producer.reporting.timeline import Stretch
from penstock_producer.sources.overrides import Overrides


def job(state: JobState = JobState.RUNNING, total: int | None = 10) -> Job:
    return Job(
        "job1",
        "nightly",
        {"model": "m", "endpoint": "/v1/chat/completions"},
        {},
        "",
        state,
        None,
        1,
        total,
        1_000.0,
        None,
    )


def counts(succeeded: int = 6, dead: int = 1, after_retry: int = 2) -> Counts:
    return Counts(succeeded, after_retry, dead, {"timeout": dead}, 9, 10, 20, 1_500_000)


def test_foreign_text_shows_its_control_characters() -> None:
    """What colours, reorders or ends a line stands there as an escape, and a lone surrogate does
    not stop the page."""
    assert shown("\x1b[31m\x00\u202e\ud800 a\nb").head == "\\x1b[31m\\x00\\u202e\ufffd a\nb"


def test_long_text_is_cut_and_says_how_much_is_missing() -> None:
    """A page has a bound, however large an answer is."""
    text = shown("x" * (MOST_CHARS + 7))
    assert (len(text.head) + len(text.rest), text.left_out) == (MOST_CHARS, 7)
    assert shown("short") == ("short", "", 0)


def test_a_request_to_be_edited_means_what_it_meant() -> None:
    """What would hide in the field is an escape of JSON, so that an unchanged form sends the same
    request."""
    body = {"messages": [{"content": "a\u202eb\u200b\x1b é \U0001f600"}]}
    text = json_text(json.dumps(body).encode())
    assert json.loads(text) == body
    assert not set(text) & set("\u202e\u200b\x1b")
    assert "é \U0001f600" in text
    assert json_text(b"no json") == "no json"
    mostly_indents = b"[" * 900 + b",".join([b"1"] * 10_000) + b"]" * 900
    assert json_text(mostly_indents) == mostly_indents.decode()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"choices": [{"message": {"content": "yes"}}]}, "yes"),
        ({"choices": [{"text": "yes"}]}, "yes"),
        ({"content": [{"type": "text", "text": "yes"}]}, "yes"),
        ({"output": [{"content": [{"type": "output_text", "text": "yes"}]}]}, "yes"),
        ({"data": [{"embedding": [0.1, 0.2]}]}, "1 vector of 2 numbers"),
        ({"choices": [None]}, '{"choices": [null]}'),
    ],
)
def test_answers_of_every_api_are_read(body: Any, said: str) -> None:
    """The text of an answer is found in each form that providers have; another form is shown as it
    is."""
    assert answer_of(json.dumps(body).encode()).head == said


def test_requests_are_shown_message_by_message() -> None:
    """System words and each message, and the body itself where it is no request."""
    body = {
        "system": "Be brief.",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, 7],
    }
    assert [(turn.role, turn.text.head) for turn in prompt_of(json.dumps(body).encode())] == [
        ("system", "Be brief."),
        ("user", "Hi"),
    ]
    assert prompt_of(b'{"input": "Hi"}')[0].text.head == "Hi"
    assert prompt_of(b"{")[0].role == "request"


def test_errors_that_differ_in_values_only_are_alike() -> None:
    """Numbers, ids, addresses and quoted values are left out; words are not."""
    assert alike("no answer within 60 s from 10.2.0.1:443") == alike(
        "no answer within 5 s from 10.9.0.77:443"
    )
    assert alike("request req_4106a8f3c9d2e failed") == alike("request req_99z8e7d6c5b4a failed")
    assert alike("bad 'temperature'") == alike("bad 'top_p'")
    assert alike("bad field") != alike("bad value")
    assert alike("HTTP 400: too long by 7") == "HTTP 400: too long by N"
    assert len(alike("x" * 100_000)) <= 160


def test_dead_letters_are_grouped_and_found_again() -> None:
    """The largest group comes first, and its members are those that can be sent again."""
    lines = [
        DeadLetterLine(
            1,
            f"doc-{n}",
            "timeout" if n else "bad_row",
            1,
            None,
            f"no answer within {n} s",
            0.0,
            n != 2,
        )
        for n in range(5)
    ]
    first, second = groups(lines)
    assert (first.reason, first.number, first.replayable, second.number) == ("timeout", "4", 3, "1")
    assert members(lines, first.reason, first.alike) == ["doc-1", "doc-3", "doc-4"]


def test_a_bar_shows_what_is_there_at_all() -> None:
    """One of a million can be seen, and the parts never exceed the whole."""
    bar = parts([("good", 999_999), ("bad", 1)], 1_000_000)
    assert [part.kind for part in bar] == ["good", "bad"]
    assert bar[-1].width > 0
    assert sum(part.width for part in bar) <= 1000.001
    assert parts([("good", 0)], 0) == []


def test_the_chart_runs_within_its_frame() -> None:
    """Speeds are the differences of what had ended; its words give the mean and the most."""
    chart = rate_chart([Stretch(0, 0, 0), Stretch(10, 20, 0), Stretch(20, 20, 10)])
    assert chart is not None
    assert chart.most == "2.0/s"
    assert "1.5/s on average" in chart.title
    points = [tuple(map(float, point.split(","))) for point in chart.line.split()]
    assert all(0 <= x <= chart.width and 0 <= y <= chart.height for x, y in points)
    assert chart.dead
    assert rate_chart([Stretch(0, 0, 0)]) is None


def test_rows_of_jobs_say_how_far_they_are() -> None:
    """Open jobs have no share of a whole, others do."""
    row, open_row = job_rows([(job(), counts()), (job(total=None), counts())], now=1_060.0)
    assert (row.share, row.finished, row.dead, row.cost, row.took) == (
        "70 %",
        "7 of 10",
        "1",
        "$1.50",
        "1 min 00 s",
    )
    assert (open_row.share, open_row.finished) == ("open", "7 so far")
    (unpriced,) = job_rows(
        [(job(), replace(counts(), prompt_tokens=5, cost_microusd=0, unpriced=6))], now=1_060.0
    )
    assert unpriced.cost == "unknown"
    assert [part.kind for part in row.bar] == ["good", "again", "bad"]


def test_places_in_the_list_survive_the_address() -> None:
    """A place is read as it was written, to the last digit; what is no place begins the list."""
    place = JobPlace(1_763_856_123.1234567, "job_1")
    assert place_in(place_text(place)) == place
    for text in ("", "x", "1.0", "nan~", "~job"):
        assert place_in(text) is None


def test_filters_name_the_states_that_there_are() -> None:
    """States without jobs are left out, but for the chosen one."""
    found = tabs({JobState.RUNNING: 3}, "failed", "a b")
    assert [(tab.name, tab.number, tab.current) for tab in found] == [
        ("all", "3", False),
        ("running", "3", False),
        ("failed", "0", True),
    ]
    assert found[1].href == "/ui/jobs?state=running&q=a+b"


def test_times_of_today_are_spans() -> None:
    """Older ones, and those of a clock that is ahead, are dates."""
    assert ago(90_000.0, 90_065.0) == "1 min 05 s ago"
    assert ago(0.0, 90_065.0) == "1970-01-01 00:00 UTC"


def test_speed_is_that_of_the_last_seconds() -> None:
    """The first look says nothing, a look after a long pause neither; then the difference
    counts."""
    now = 0.0
    speeds = Speeds(lambda: now)
    assert speeds.note("a", 0, 0) is None
    now = 10.0
    assert speeds.note("a", 50, 1_000) == (5.0, 100.0)
    now = 500.0
    assert speeds.note("a", 60, 1_000) is None


class Rows:
    """Stands for the outcomes of a job; counts how often they are read."""

    def __init__(self) -> None:
        self.read = 0

    def ended_in(self, job_id: str, since: float, each_s: int) -> list[tuple[int, int, int]]:
        self.read += 1
        return [(0, 5, 0)]

    def latencies(self, job_id: str) -> list[tuple[int, int]]:
        return [(100, 5)]


def test_a_course_is_counted_seldom() -> None:
    """A small job is counted at once and again after a pause; one that has ended is counted
    once."""
    now = 0.0
    rows = Rows()
    courses = Timelines(rows, lambda: now)  # type: ignore[arg-type]  # all that is asked of a store here
    assert courses.of(job(), 5) is not None
    courses.of(job(), 6)
    assert rows.read == 1
    now = 6.0
    courses.of(job(), 6)
    assert rows.read == 2
    now = 20.0
    courses.of(job(JobState.COMPLETED), 6)
    assert rows.read == 2, "nothing has ended since"
    assert courses.of(replace(job(), job_id="b"), AT_ONCE + 1) is None, (
        "a large one is counted beside"
    )


def test_lanes_say_what_bounds_them() -> None:
    """Full slots, an empty queue, and a lane without a worker, each with what to do."""
    seen = [WorkerSeen("w1", 1.0, {"lane": "api", "concurrency": "4", "in_flight": "4"})]
    depths = {"api": Depth(9, 4, 0, 0), "gpu": Depth(3, 0, 0, 0)}
    api, gpu = lane_views(seen, depths)
    assert "all 4 slots are taken" in api.bound
    idle = lane_views(
        [WorkerSeen("w1", 1.0, {"lane": "api", "concurrency": "4", "knows_moves": "yes"})],
        {"api": Depth(0, 0, 0, 0)},
    )[0]
    assert (idle.bound, idle.workers[0].more) == (
        "none of 4 slots is taken: there is nothing to do",
        "",
    )
    assert (gpu.alive, gpu.command) == (0, "penstock worker --lane gpu")
    here = lane_views(seen, depths, one_machine=True)[1]
    assert (here.bound, here.command) == (
        "no worker lives: start `penstock serve` again with --lane gpu",
        "",
    )
    hostile = lane_views(
        [WorkerSeen("w\x1b", 1.0, {"lane": "x\n", "concurrency": "9" * 99, "in_flight": "-1"})], {}
    )
    assert "\x1b" not in hostile[0].workers[0].name
    assert hostile[0].workers[0].slots == "0 of 0"


def test_a_held_quota_comes_with_its_fix() -> None:
    """The command lifts that quota, quoted."""
    seen = QuotaSeen(
        "my key",
        {"requests_per_minute": 2.0, "tokens_per_day": 1.0},
        5,
        1,
        0,
        "out_of_money",
        60.0,
        0.0,
        0.0,
        False,
    )
    (row,) = quota_rows([seen], {}, 0.0)
    assert row.stops[0][2] == "penstock limits --lift 'my key'"
    (served,) = quota_rows([seen], {}, 0.0, in_state_of("sqlite:////srv/my%20state/penstock.db"))
    assert served.stops[0][2] == "penstock limits --lift 'my key' --state '/srv/my state'"
    assert (
        in_state_of("postgresql://penstock@db/penstock")
        == in_state_of("sqlite:////srv/other.db")
        == ""
    )
    assert list(row.limits) == ["120 requests a minute", "86,400 tokens a day"]
    assert (row.state, row.kind) == ("held", "bad")


def test_a_quota_that_is_held_back_for_people_says_so() -> None:
    """On the page of quotas and, by the same words, on that of a job."""
    yields = YieldsSeen("over", 26.0, 0.5, 1.25, "", True)
    seen = QuotaSeen("vllm", {}, 5, 0, 0, "", 0.0, 0.0, 0.0, False, yields)
    (row,) = quota_rows([seen], {}, 0.0)
    assert row.stops == [
        (
            "held back for interactive traffic: TTFT p95 1.2 s over 0.5 s, 26 calls at most",
            "",
            "",
        )
    ]


def test_spending_is_told_by_tenant_and_price() -> None:
    """Each price stands once, and an unknown one says how it becomes known."""
    (row,) = spend_rows([Spending(None, 2, 9, 1, 10, 5, 6, 2_000_000)], "no tenant")
    assert (row.name, row.cost) == ("no tenant", "$2.00")
    assert total_of([Spending(None, 2, 9, 1, 10, 5, 6, 0, 9)])[0] == "unknown"
    made = [
        MadeWith(1, "api", "p", "1", "", 1.0, 2.0),
        MadeWith(2, "api", "p", "1", "", 1.0, 2.0),
        MadeWith(1, "api", "q", "1", ""),
    ]
    assert [price.price for price in price_rows(made)] == [
        "$1.00 in, $2.00 out per million tokens",
        "unknown: set it in [providers.NAME.prices]",
    ]


def test_files_are_named_by_their_content() -> None:
    """A changed style has another name, so that no browser keeps the old one."""
    assert asset_path("dashboard.css").startswith("/ui/static/dashboard-")


@pytest.mark.parametrize(
    "origin", ["", "null", "https://evil.example", "http://here.example.evil:80"]
)
def test_forms_come_from_our_own_pages(origin: str) -> None:
    """A form without an origin, or of another one, is refused."""
    headers = [(b"host", b"here.example"), (b"origin", origin.encode())]
    with pytest.raises(Refused):
        check_origin(Request({"type": "http", "headers": headers}), ())
    own = [(b"host", b"here.example"), (b"origin", b"https://here.example")]
    check_origin(Request({"type": "http", "headers": own}), ())


def test_a_whole_request_replaces_that_of_a_dead_letter() -> None:
    """It stands alone, is an object, and is sent as it is."""
    assert json.loads(Overrides({"body": {"model": "m"}}).apply(b'{"model": "old"}')) == {
        "model": "m"
    }
    wrong: list[dict[str, Any]] = [
        {"body": []},
        {"body": {}},
        {"body": {"stream": True}},
        {"body": {"a": 1}, "set": {"model": "m"}},
    ]
    for given in wrong:
        with pytest.raises(SpecError):
            Overrides(given)
