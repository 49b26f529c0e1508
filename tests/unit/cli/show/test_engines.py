"""What bounds the fleet, from made-up heartbeats."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from penstock_cli.show.figures import JobFigures
from penstock_cli.show.progress import Lines, panel
from penstock_ledger.in_redis.batches import WorkerSeen
from penstock_producer.reporting.engines import Engines, engines_line, engines_of

GPU = {
    "lane": "gpu",
    "concurrency": "256",
    "running": "125",
    "waiting": "10",
    "kv_usage": "0.4",
    "prefix_hit_rate": "0.8",
    "prompt_tokens_per_s": "6000.4",
    "generation_tokens_per_s": "2500",
    "queue_wait_ms": "12",
    "bound": "engine",
}
SECOND = GPU | {
    "waiting": "21",
    "kv_usage": "0.42",
    "prefix_hit_rate": "0.86",
    "prompt_tokens_per_s": "6300",
}
LINE = (
    "gpu: 2 engines · 250 running, 31 waiting · KV 41 % · prefix hits 83 % · 12,300 prompt + 5,000 "
    "generated tokens/s · 12 ms in line · bound by the engine: it has all it can do"
)


def seen(*infos: dict[str, str], ago: float = 1.0) -> list[WorkerSeen]:
    return [WorkerSeen(f"w{number}", ago, info) for number, info in enumerate(infos)]


def both() -> Engines:
    found = engines_of(seen(GPU, SECOND), "gpu")
    assert found is not None
    return found


def test_engines_are_added_up() -> None:
    """Counts and rates are sums, shares are means, and the line says what bounds them."""
    assert engines_line(both()) == LINE
    told = both().to_json()
    assert (told["engines"], told["running"], told["bound"]) == (2, 250, "engine")
    assert told["kv_usage"] == pytest.approx(0.41)
    assert told["queue_wait_ms"] == 12
    assert "tokens_per_s" not in told


@pytest.mark.parametrize("said", ["", "{", "[]", "{}", '{"code": 5}', '{"code": "\\u001b"}'])
def test_a_hold_that_makes_no_sense_is_left_out(said: str) -> None:
    """As all that comes from processes of another version."""
    found = engines_of(seen(GPU | {"yields": said}, SECOND), "gpu")
    assert found is not None
    assert engines_line(found) == LINE


def test_a_model_that_loads_is_shown() -> None:
    """Before the first document the line says how far the load is, of how many workers, and hostile
    words are cut."""
    loads = {
        "lane": "gpu",
        "bound": "starting",
        "loading": "reading weights, 3.1 of 15.0 GiB after 42 s",
    }
    found = engines_of(seen(loads, loads), "gpu")
    assert found is not None
    assert "loading in 2 workers: reading weights, 3.1 of 15.0 GiB after 42 s" in engines_line(
        found
    )
    hostile = engines_of(seen(loads | {"loading": "\x1b[2J" + "x" * 9999}), "gpu")
    assert hostile is not None
    assert hostile.loading is not None
    assert len(hostile.loading) < 200
    assert "\x1b" not in hostile.loading


def test_an_embed_worker_has_figures_of_its_own() -> None:
    """Tokens and items per second, and how little of its batches is padding."""
    info = {
        "lane": "embed",
        "tokens_per_s": "54321",
        "items_per_s": "410.6",
        "padding_efficiency": "0.97",
        "waiting": "8",
        "bound": "queue",
    }
    found = engines_of(seen(info), "embed")
    assert found is not None
    assert engines_line(found) == (
        "embed: 1 engine · 8 waiting · padding efficiency 97 % · 54,321 tokens/s · 411 items/s"
        " · bound by the queue: too few items reach it"
    )


@pytest.mark.parametrize(
    "workers",
    [
        [],
        seen({}),
        seen({"lane": "gpu", "concurrency": "8", "in_flight": "3"}),
        seen(GPU | {"lane": "api"}),
        seen(GPU, ago=60.0),
        seen(
            {"lane": "gpu", "running": "many", "kv_usage": "", "bound": "aliens", "waiting": "nan"}
        ),
    ],
)
def test_nothing_is_shown_where_no_live_engine_tells_of_itself(workers: list[WorkerSeen]) -> None:
    """Workers without gauges, of other lanes, silent ones, and those that tell nonsense."""
    assert engines_of(workers, "gpu") is None


@pytest.mark.parametrize("bad", ["", "x", "nan", "inf", "-1", "7e999"])
def test_a_value_that_makes_no_sense_is_left_out(bad: str) -> None:
    """The others of the same worker, and those of other workers, still count."""
    found = engines_of(seen(GPU | {"running": bad, "kv_usage": bad}, SECOND), "gpu")
    assert found is not None
    assert (found.engines, found.running, found.kv_usage, found.waiting) == (2, 125, 0.42, 31)


def test_a_share_above_one_is_no_share() -> None:
    """A worker's KV usage outside of 0 to 1 is not shown."""
    found = engines_of(seen(GPU | {"kv_usage": "41"}), "gpu")
    assert found is not None
    assert found.kv_usage is None
    assert "KV" not in engines_line(found)


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        (["queue", "engine", "queue"], "queue"),
        (["memory", "engine"], "engine"),
        (["odd", "memory"], "memory"),
    ],
)
def test_the_bound_is_what_most_engines_say(bounds: list[str], said: str) -> None:
    """Of as many votes each, always the same one."""
    found = engines_of(
        seen(*({"lane": "gpu", "bound": bound} | {"running": "1"} for bound in bounds)), "gpu"
    )
    assert found is not None
    assert found.bound == said


def test_a_starting_engine_says_so_without_figures() -> None:
    """An engine that still loads is shown as such, without figures."""
    found = engines_of(seen({"lane": "gpu", "bound": "starting"}), "gpu")
    assert found is not None
    assert engines_line(found) == "gpu: 1 engine · bound by its start: the engine loads"


def test_the_line_is_shown_while_a_job_runs() -> None:
    """In the lines of a log and in the panel; without engines nothing is added."""
    for shown, times in ((both(), 1), (None, 0)):
        out = io.StringIO()
        console = Console(file=out, width=200)
        Lines(console).show(JobFigures(10, engines=shown))
        console.print(panel(JobFigures(10, engines=shown), "job"))
        text = out.getvalue()
        assert text.count(LINE) == times
        assert text.count("bound by") == 2 * times
