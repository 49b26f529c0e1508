"""`penstock.connect`: the same calls, for jobs that run behind HTTP doors or in a fleet."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fleet import Fleet
from machine import Machine, Simulator, eventually, simulator
from pydantic import BaseModel
from servers import free_port

import penstock


class Ticket(BaseModel):
    """What an answer is asked to be."""

    category: str
    urgent: bool


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def provider() -> Iterator[Simulator]:
    with simulator() as found:
        yield found


def test_a_serve_answers_the_same_calls(folder: Path, provider: Simulator) -> None:
    """Rows go there and come back with typed answers; the same call finds the job again, also as
    one that is followed or named; what the server decides is refused by name."""
    port = free_port()
    flags = ("--port", str(port), "--state", "state", "--base-url", provider.url, "--no-progress")
    server = Machine(folder).start("serve", *flags)
    try:
        eventually(lambda: answers_at(port))
        there = penstock.connect(f"http://127.0.0.1:{port}/v1")
        frame = pd.DataFrame({"text": ["late", "lost", None]}, index=[5, 6, 7])
        options: dict[str, Any] = {
            "prompt": "Categorise: {text}",
            "model": "sim",
            "response_format": Ticket,
        }
        answers = there.run(frame, **options)
        got = answers.to_pandas()
        pd.testing.assert_frame_equal(got[["text"]], frame)
        assert list(got["status"]) == ["succeeded", "succeeded", "failed"]
        assert isinstance(answers[0].value, Ticket)
        paid = provider.stats()["requests"]
        assert sorted(one.number for one in there.stream(frame, **options)) == [0, 1, 2]
        assert provider.stats()["requests"] == paid
        job = there.job(answers.job)
        assert (job.wait(30).report["succeeded"], job.status.state) == (2, "completed")
        with pytest.raises(penstock.BadCall, match="base_url is for the server to say"):
            there.run(frame, base_url=provider.url, **options)
        with pytest.raises(penstock.BadCall, match="no job 'other'"):
            there.job("other")
    finally:
        server.terminate()
        server.communicate()


def answers_at(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_fleet_answers_the_same_calls(folder: Path) -> None:
    """Rows are pushed into a job of the fleet, once however often the call is made."""
    with Fleet(folder / "fleet") as fleet:
        fleet.provider.start()
        fleet.control()
        fleet.worker()
        there = penstock.connect(fleet.database_url)
        rows = [{"text": f"t{number}"} for number in range(20)]
        answers = there.run(rows, prompt="Say {text}", model="sim")
        assert [one.ok for one in answers] == [True] * 20
        assert [row["text"] for row in answers.to_list()] == [row["text"] for row in rows]
        again = there.run(rows, prompt="Say {text}", model="sim")
        assert (again.job, len(again)) == (answers.job, 20)


def test_an_address_that_is_none_is_refused() -> None:
    """It says which addresses there are, and a server that does not answer is no traceback of
    urllib."""
    with pytest.raises(penstock.BadCall, match="no address of jobs"):
        penstock.connect("redis://localhost")
    with pytest.raises(penstock.RunFailed, match=r"no server answers at http://127\.0\.0\.1:1"):
        penstock.connect("http://127.0.0.1:1").run(["a"], prompt="{text}", model="sim")
    with pytest.raises(penstock.BadCall, match="the variable NO_SUCH is not set"):
        penstock.connect("http://127.0.0.1:1", api_key_env="NO_SUCH")
