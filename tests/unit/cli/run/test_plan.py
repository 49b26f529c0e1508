"""`penstock plan`: what a fleet needs, from a source, from figures as typed, or from a job that was
run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock_cli.errors import UsageProblem
from penstock_cli.job.lane_needs import hour_from
from penstock_cli.job.picture import documents_of, measured_job
from penstock_cli.main import command_line
from penstock_cli.run.extrapolated import sample_says
from penstock_cli.run.sample import deciding_options
from penstock_ledger import JobStore, OutcomeStore, open_database
from penstock_ledger.model import DeadLetter, ItemKey, NewJob, Result
from penstock_producer.job.spec import JobSpec
from penstock_workers.settings import CostSettings, WorkerSettings

TYPED = ["plan", "--tokens-in", "400", "--tokens-out", "100", "--model", "gpt-5-mini"]


def planned(*typed: str) -> dict[str, dict[str, object]]:
    """What it says of each lane, and of the job itself under ``""``."""
    done = CliRunner().invoke(command_line(), [*typed, "--json"])
    assert (done.exit_code, done.exception) == (0, None), done.output
    shown = json.loads(done.output)
    return {lane["lane"]: lane for lane in shown["lanes"]} | {"": shown}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return tmp_path


def test_a_plan_needs_no_source(folder: Path) -> None:
    """A hundred million in a day with a limit that takes two: the limit is named, and what it would
    have to be."""
    lanes = planned(
        *TYPED, "--documents", "100M", "--within", "24h", "--rpm", "30000", "--latency", "2s"
    )
    api = lanes["api"]
    assert api["cost_usd"] == pytest.approx(100e6 * (400 * 0.25 + 100 * 2) / 1e6)
    assert lanes["batch"]["cost_usd"] == pytest.approx(100e6 * (400 * 0.25 + 100 * 2) / 2e6)
    plan = api["planned"]
    assert isinstance(plan, dict)
    assert (plan["binding"], plan["in_time"]) == ("30,000 requests a minute", False)
    assert plan["seconds"] > 2 * 86_400
    assert plan["quota_needed"]["requests"] > 100e6 / 1440
    assert lanes["gpu"]["planned"] is None
    assert "--sample 100" in str(lanes["gpu"]["why"])
    assert list(folder.iterdir()) == []


def test_every_assumption_has_its_source() -> None:
    """For people: what was typed, what was assumed, and what was measured on which day."""
    shown = CliRunner().invoke(command_line(), [*TYPED, "--documents", "1k", "--rpm", "600"]).output
    assert "prompt tokens: 400 a document (as typed)" in shown
    assert "assumed: 0.5 s and 50 tokens a second; --latency or --from-job say better" in shown
    assert "measured on 2026-" in shown
    assert "to go faster:" in shown
    assert "no call was made" in shown


def test_a_source_is_read_for_its_tokens(folder: Path) -> None:
    """Its documents, its prompts and the longest answers that its requests allow."""
    rows = (json.dumps({"id": str(number), "text": "word " * 100}) for number in range(200))
    (folder / "docs.jsonl").write_text("\n".join(rows))
    lanes = planned(
        "plan",
        "docs.jsonl",
        "--prompt",
        "{text}",
        "--model",
        "m",
        "--param",
        "max_tokens=50",
        "--lane",
        "api",
    )
    assert set(lanes) == {"", "api"}
    assert (lanes[""]["documents"], lanes[""]["tokens_out"]) == (200, 50)
    assert lanes[""]["tokens_in"] == pytest.approx(105, abs=10)


def job_in(state: Path, spec: JobSpec, seconds: float = 2.0) -> None:
    """A hundred documents, of which a tenth took two calls and two are dead, over ten seconds."""
    state.mkdir()
    database = open_database(f"sqlite:///{state}/penstock.db")
    database.migrate()
    JobStore(database).create(
        NewJob("j1", "trial", spec.to_json(), {"kind": "file", "uri": "docs.jsonl"}, "d", 100)
    )
    keys = [ItemKey("j1", 1, f"d{number:03}") for number in range(100)]
    results = [
        Result(
            keys[number],
            200,
            b'{"a": 1}',
            None,
            "m",
            "stop",
            300,
            40,
            500,
            round(seconds * 1000),
            1,
            1 + (number < 10),
        )
        for number in range(98)
    ]
    letters = [
        DeadLetter(keys[number], "http_400", 1, 1, "bad", 400, b"{}", None) for number in (98, 99)
    ]
    OutcomeStore(database).settle(results, letters)
    database.close()


def test_an_earlier_job_gives_its_figures(folder: Path) -> None:
    """Its tokens, latencies, calls again and what a document cost, for more of the same."""
    job_in(folder / "state", JobSpec(prompt="{text}", model="m"))
    asked = ["--documents", "10k", "--workers", "1", "--concurrency", "100"]
    lanes = planned("plan", "--from-job", "trial", "--state", "state", *asked)
    assert (lanes[""]["tokens_in"], lanes[""]["tokens_out"]) == (300, 40)
    assert lanes["api"]["cost_usd"] == pytest.approx(10_000 * 490e-6)
    plan = lanes["api"]["planned"]
    assert isinstance(plan, dict)
    assert plan["binding"] == "slots"
    again = 10 / 108
    assert plan["phases"]["calls"] == pytest.approx(10_000 / (1 - again) * 2 / 100, rel=0.1)


def test_a_job_that_moved_gives_the_figures_of_each_lane(folder: Path) -> None:
    """What batches cost and how long api's calls took are not mixed, and neither is how often each
    asked again."""
    (folder / "state").mkdir()
    database = open_database(f"sqlite:///{folder}/state/penstock.db")
    database.migrate()
    spec = JobSpec(prompt="{text}", model="m", lane="batch", lanes=["batch", "api"])
    JobStore(database).create(
        NewJob("j1", "trial", spec.to_json(), {"kind": "file", "uri": "docs.jsonl"}, "d", 100)
    )
    for lane, numbers, cost, seconds, calls in (
        ("batch", range(60), 250, 0, 1),
        ("api", range(60, 100), 500, 4, 2),
    ):
        keys = [ItemKey("j1", 1, f"d{number:03}") for number in numbers]
        results = [
            Result(key, 200, b"{}", None, "m", "stop", 300, 40, cost, seconds * 1_000, 1, calls)
            for key in keys
        ]
        OutcomeStore(database, lane).settle(results, [])
    database.close()
    asked = ["--documents", "10k", "--workers", "1", "--concurrency", "100"]
    lanes = planned("plan", "--from-job", "trial", "--state", "state", *asked)
    assert lanes["api"]["cost_usd"] == pytest.approx(10_000 * 500e-6)
    assert lanes["batch"]["cost_usd"] == pytest.approx(10_000 * 250e-6)
    plan = lanes["api"]["planned"]
    assert isinstance(plan, dict)
    assert plan["phases"]["calls"] == pytest.approx(10_000 * 2 * 4 / 100, rel=0.1)
    found = measured_job("trial", folder / "state", 1)
    assert {name: (one.documents, one.again) for name, one in found.lanes.items()} == {
        "batch": (60, 0.0),
        "api": (40, 0.5),
    }
    assert found.main.lane == "batch"


def test_a_sample_that_two_lanes_have_answered_says_of_each_what_all_would_cost_there(
    folder: Path,
) -> None:
    """By the documents that were answered in it alone: half the price of the batches is not mixed
    into the calls'."""
    (folder / "state" / "samples").mkdir(parents=True)
    database = open_database(f"sqlite:///{folder}/state/penstock.db")
    database.migrate()
    spec = JobSpec(prompt="{text}", model="m", lane="batch", lanes=["batch", "api"])
    name = "all-sample-12345678"
    JobStore(database).create(
        NewJob("j1", name, spec.to_json(), {"kind": "file", "uri": "docs.jsonl"}, "d", 100)
    )
    for lane, numbers, cost in (("batch", range(60), 250), ("api", range(60, 100), 500)):
        keys = [ItemKey("j1", 1, f"d{number}") for number in numbers]
        results = [
            Result(key, 200, b"{}", None, "m", "stop", 300, 40, cost, 500, 1, 1) for key in keys
        ]
        OutcomeStore(database, lane).settle(results, [])
    database.close()
    sizes = {f"d{number}": 1_000 for number in range(100)}
    options = json.loads(json.dumps(deciding_options(spec)))
    record = {
        "job": "all",
        "options": options,
        "documents": 10_000,
        "size": 10_000_000,
        "sizes": sizes,
    }
    (folder / "state" / "samples" / f"{name}.json").write_text(json.dumps(record))
    said = sample_says(folder / "state", "all", spec, WorkerSettings(), 2, 50)
    assert (
        said[0] == "all 10,000 documents, as a random sample of 100 has them, with 90% intervals:"
    )
    costs = [line.split(maxsplit=1)[1] for line in said if line.startswith("  cost")]
    assert costs == [
        "about $2.50 in batch, by the 60 documents answered there",
        "about $5.00 in api, by the 40 documents answered there",
    ]
    times = [line for line in said if line.startswith("  time")]
    assert [line.rpartition(" in ")[2].partition(",")[0] for line in times] == ["batch", "api"]


def test_a_job_without_an_answer_measures_nothing(folder: Path) -> None:
    """It is refused by name, and so is one that there is not."""
    (folder / "state").mkdir()
    database = open_database(f"sqlite:///{folder}/state/penstock.db")
    database.migrate()
    spec = JobSpec(prompt="{text}", model="m").to_json()
    JobStore(database).create(NewJob("j1", "empty", spec, {"kind": "file", "uri": "x"}, "d", 1))
    database.close()
    done = CliRunner().invoke(command_line(), ["plan", "--from-job", "empty", "--state", "state"])
    assert "it has no answered document" in str(done.exception)


def test_documents_are_typed_as_people_write_them() -> None:
    """With a letter for the size; what is no number, none or beyond all is refused."""
    assert [documents_of(text) for text in ("7", "1.5k", "100M", "2G", "1,000")] == [
        7,
        1_500,
        10**8,
        2 * 10**9,
        1_000,
    ]
    for text in ("", "M", "many", "0", "-5", "nan", "inf", "1e30"):
        with pytest.raises(UsageProblem, match="--documents"):
            documents_of(text)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["plan", "--model", "m"], "say how many documents"),
        (["plan", "--documents", "10", "--model", "m"], "--tokens-in N --tokens-out N"),
        (["plan", "--documents", "10", "--within", "soon"], "--within 'soon'"),
        (["plan", "--documents", "10", "--tokens-in", "1e12"], "--tokens-in 1e+12 is refused"),
    ],
)
def test_what_is_missing_is_named(typed: list[str], words: str) -> None:
    """With what to type."""
    done = CliRunner().invoke(command_line(), typed)
    assert words in str(done.exception)


def test_what_an_hour_costs_says_where_it_is_from() -> None:
    """A row of the table with its date and page, or the settings."""
    assert hour_from(CostSettings(card="nebius/H100-SXM", on_spot=True)) == (
        "nebius/H100-SXM on spot, as "
        "https://github.com/skypilot-org/skypilot-catalog/blob/master/catalogs/v8/nebius/vms.csv "
        "had it on 2026-11-23"
    )
    assert hour_from(CostSettings(card="nebius/H100-SXM", usd_per_gpu_hour=1.0)) == "by settings"
