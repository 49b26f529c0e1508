"""`penstock serve` from the outside: batches by the unmodified SDK, ends of every kind, and
resumption."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import openai
import psutil
import pytest
from machine import Machine, eventually, simulator
from servers import free_port

BATCH = 60  # documents of one batch
STARTED_S = 60.0
# Of the model that the lines of batches name: what a provider says on its price page.
PRICES = """
[providers.default.prices.sim]
input = 1.0
output = 2.0
batch_discount = 0.5
"""


class Served:
    """One `penstock serve` after another over the same state folder."""

    def __init__(self, machine: Machine, provider_url: str) -> None:
        self.machine = machine
        self.port = free_port()
        self.flags = [
            "serve",
            "--port",
            str(self.port),
            "--state",
            "state",
            "--base-url",
            provider_url,
            "--no-progress",
        ]
        self.process: subprocess.Popen[str] | None = None
        self._told = ""  # by the process so far

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=5)

    def start(self) -> None:
        """Return once it says that it serves, which it looks for less often than this test would."""
        self.process = self.machine.start(*self.flags)
        assert self.process.stdout is not None
        self._told = ""
        for line in self.process.stdout:
            self._told += line
            if "serving on" in line:
                break
        eventually(self.healthy, STARTED_S)

    def healthy(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self._told + self.process.communicate()[0]
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer,
        ):
            return bool(answer.status == 200)
        return False

    def end(self, number: signal.Signals) -> tuple[int, str]:
        assert self.process is not None
        self.process.send_signal(number)
        told, _ = self.process.communicate(timeout=STARTED_S)
        return self.process.returncode, self._told + told

    def processes(self) -> list[str]:
        """Those that work in the folder."""
        return self.machine.leftovers()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with simulator("--latency-ms", "50") as provider:
        one = Served(Machine(tmp_path), provider.url)
        try:
            yield one
        finally:
            if one.process is not None and one.process.poll() is None:
                one.end(signal.SIGTERM)


def lines(number: int = BATCH) -> bytes:
    return b"".join(
        json.dumps(
            {
                "custom_id": f"doc-{n}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": "sim", "messages": [{"role": "user", "content": f"text {n}"}]},
            }
        ).encode()
        + b"\n"
        for n in range(number)
    )


def begun(client: openai.OpenAI, **metadata: str) -> str:
    """The id of a batch that was created."""
    file = client.files.create(file=("batch.jsonl", lines()), purpose="batch")
    return client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata=metadata,
    ).id


def ended(client: openai.OpenAI, batch: str) -> bool:
    return client.batches.retrieve(batch).status == "completed"


def test_batches_go_on_after_an_interrupt_and_after_kills(served: Served) -> None:
    """Ctrl-C ends it within its drain with status 0 and nothing left; a door that is killed is
    started again, as are door and workers with the process that forked them; nothing outlives a serve that is killed; the same command goes on each time, and
    every document has one answer."""
    served.start()
    first = begun(served.client)
    status, told = served.end(signal.SIGINT)
    assert status == 0, told
    assert f"serving on {served.url}" in told
    assert "stopped; go on with:  penstock serve" in told
    assert served.processes() == []
    served.start()
    kill(served, "gateway")
    eventually(served.healthy)
    kill_fork_server(served)
    eventually(served.healthy)
    second = begun(served.client)
    served.end(signal.SIGKILL)
    eventually(lambda: not served.machine.at_work())
    served.start()
    for batch in (first, second):
        eventually(partial(ended, served.client, batch))
        output = served.client.batches.retrieve(batch).output_file_id
        assert output is not None
        answers = [
            json.loads(line)["custom_id"]
            for line in served.client.files.content(output).text.splitlines()
        ]
        assert sorted(answers) == sorted(f"doc-{n}" for n in range(BATCH))


def test_lane_auto_serves_calls_at_once_and_batches_by_what_they_allow(tmp_path: Path) -> None:
    """`--lane auto`: a call that waits is answered in real time, a batch with a day's time by the
    provider's batches, at half the price of the model that its lines name, and one that names a
    lane there; all by the unmodified SDK."""
    with simulator("--latency-ms", "20", "--batch-s", "0.5", "--batch-step-s", "0.05") as provider:
        one = Served(Machine(tmp_path), provider.url)
        one.flags += ["--lane", "auto"]
        (tmp_path / "penstock.toml").write_text(PRICES)
        one.start()
        try:
            answer = one.client.chat.completions.create(
                model="sim", messages=[{"role": "user", "content": "at once"}]
            )
            assert answer.choices[0].message.content
            assert lane_of(one, begun(one.client, **{"penstock.lane": "api"})) == "api"
            # The worker of batches may start after the doors: until it does, a batch goes to whom
            # there is.
            eventually(lambda: lane_of(one, begun(one.client)) == "batch", STARTED_S)
        finally:
            status, told = one.end(signal.SIGTERM)
        assert status == 0, told
        assert one.processes() == []


def lane_of(served: Served, batch: str) -> str:
    """In which a batch has ended, with all of its answers."""
    eventually(partial(ended, served.client, batch), STARTED_S)
    output = served.client.batches.retrieve(batch).output_file_id
    assert output is not None
    assert len(served.client.files.content(output).text.splitlines()) == BATCH
    with urllib.request.urlopen(f"{served.url}/v1/jobs/{batch}") as job:
        return str(json.load(job)["lane"])


def kill(served: Served, name: str) -> None:
    """SIGKILL for the one process of this folder that has this name."""
    there = served.machine.processes().items()
    os.kill(next(pid for pid, words in there if words.startswith(name)), signal.SIGKILL)


def kill_fork_server(served: Served) -> None:
    """SIGKILL for the parent of the door; return once the door has gone with it."""
    door = next(
        pid for pid, words in served.machine.processes().items() if words.startswith("gateway")
    )
    os.kill(psutil.Process(door).ppid(), signal.SIGKILL)
    eventually(lambda: door not in served.machine.processes())


def test_what_cannot_be_served_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """A port that is taken, a lane that is none, an open door without a key, a model for a lane
    without one: one sentence."""
    machine = Machine(tmp_path)
    with simulator() as provider:
        taken = provider.url.rsplit(":", 1)[1].removesuffix("/v1")
        for flags, words in (
            (["--port", taken], "Choose another --port"),
            (["--lane", "fast"], "the lanes are"),
            (
                ["--host", "0.0.0.0", "--port", "0"],
                "`penstock keys create NAME --scope admin --state state`",
            ),
            (["--model", "m"], "--model is for lanes that host a model"),
        ):
            status, told = machine.penstock(
                "serve", "--state", "state", "--base-url", provider.url, "--no-progress", *flags
            )
            assert (status, words in told) == (2, True), told
    assert machine.leftovers() == []
