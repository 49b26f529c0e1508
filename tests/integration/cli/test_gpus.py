"""`penstock worker --gpus` on a machine of two cards: an nvidia-smi of our own on PATH lists them,
and toy workers compute."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from forked import run

from penstock_workers.celery_app.probe import check

NVIDIA_SMI = """#!/bin/sh
echo 'GPU 0: Toy (UUID: GPU-aaaa1111-0000-0000-0000-000000000000)'
echo 'GPU 1: Toy (UUID: GPU-bbbb2222-0000-0000-0000-000000000000)'
"""
# A worker that says what it was given, is ready at once, and drains on SIGTERM. The card in
# TOY_BROKEN never comes up.
TOY = """
import json, os, signal, sys, time
from pathlib import Path
from penstock_cli.processes.signals import end_with_parent
from penstock_cli.settings import parent_pid
from penstock_workers.celery_app.probe import ProbeFiles
end_with_parent(parent_pid())
given = {name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PENSTOCK_GPU__CARDS")}
cards = given["CUDA_VISIBLE_DEVICES"]
if cards == os.environ.get("TOY_BROKEN"):
    sys.exit(3)
probes = ProbeFiles(Path(os.environ["PENSTOCK_PROBE_DIR"]))
def drain(*_):
    Path(os.environ["TOY_OUT"], f"drained-{cards}").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, drain)
with Path(os.environ["TOY_OUT"], "started").open("a") as file:
    file.write(json.dumps({"pid": os.getpid(), "name": sys.argv[-1], **given}) + "\\n")
probes.started()
probes.ready()
time.sleep(600)
"""
SERVE = """
import sys
from pathlib import Path
from penstock_cli.processes.gpu_workers import GpuWorkers, cards_asked, serve
from penstock_workers.settings import WorkerSettings
settings = WorkerSettings(lane="gpu", probe_dir=Path(sys.argv[2]), drain_seconds=5)
workers = GpuWorkers(
    cards_asked("all", settings), [sys.executable, "-c", sys.argv[1]], "pool@%h", pause_base_s=0.01
)
sys.exit(serve(workers))
"""


class Started(NamedTuple):
    pid: int
    name: str
    cards: str
    order: str
    announced: str


class Machine:
    """The command on its machine, and what its workers have said."""

    def __init__(self, folder: Path) -> None:
        self.out, self.probes, tools = folder / "out", folder / "probes", folder / "bin"
        for made in (self.out, tools):
            made.mkdir()
        (tools / "nvidia-smi").write_text(NVIDIA_SMI)
        (tools / "nvidia-smi").chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        self.environment = {
            **kept,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "TOY_OUT": str(self.out),
        }
        self.process: subprocess.Popen[str] | None = None

    def start(self, **variables: str) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, TOY, str(self.probes)],
            env={**self.environment, **variables},
            stderr=subprocess.PIPE,
            text=True,
        )
        return self.process

    def started(self) -> list[Started]:
        with contextlib.suppress(FileNotFoundError):
            lines = (self.out / "started").read_text().splitlines()
            return [Started(*json.loads(line).values()) for line in lines]
        return []

    def say(self, state: str) -> str | None:
        return check(str(self.probes), state)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    if machine.process is not None and machine.process.poll() is None:
        machine.process.kill()
        machine.process.wait()


def eventually(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def test_each_card_has_a_worker_that_is_kept_running(machine: Machine) -> None:
    """One process per card with that card alone; a killed or stuck one is replaced beside the
    other; SIGTERM drains all."""
    process = machine.start()
    eventually(
        lambda: (
            machine.say("ready") is None
            and machine.say("started") is None
            and len(machine.started()) == 2
        )
    )
    first, second = sorted(machine.started(), key=lambda one: one.cards)
    assert (first.cards, first.announced, first.name) == ("0", "0", "pool-card-0@%h")
    assert (second.cards, second.announced, second.name) == ("1", "1", "pool-card-1@%h")
    assert first.order == "PCI_BUS_ID"

    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: [one.cards for one in machine.started()].count("0") == 2)
    os.utime(machine.probes / "card-1/alive", (1, 1))
    eventually(lambda: [one.cards for one in machine.started()].count("1") == 2)
    eventually(lambda: machine.say("ready") is None)
    assert machine.say("alive") is None

    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 0
    assert {path.name for path in machine.out.glob("drained-*")} == {"drained-0", "drained-1"}
    assert "the worker of card-0 ended with signal SIGKILL; starting it again" in said
    assert "the worker of card-1 is killed: not alive" in said
    assert machine.say("ready") is not None


def test_a_card_that_never_comes_up_leaves_the_others_working(machine: Machine) -> None:
    """It is given up after a bounded number of starts, the note and the exit status say so, and the
    other card goes on."""
    process = machine.start(TOY_BROKEN="1")
    eventually(lambda: machine.say("started") is None and (machine.probes / "note").exists())
    assert "the worker of card-1 is given up" in (machine.probes / "note").read_text()
    assert [one.cards for one in machine.started()] == ["0"]
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 3
    assert "card-1 ended 5 times in a row" in said
    assert (machine.out / "drained-0").exists()


def test_the_command_ends_when_no_card_is_left_or_its_machine_has_none(machine: Machine) -> None:
    """With no worker left to keep it ends by itself; a card that is not there is refused before
    anything is started."""
    process = machine.start()
    eventually(lambda: len(machine.started()) == 2)
    for one in machine.started():
        os.kill(one.pid, signal.SIGTERM)
    assert process.wait(30) == 0
    words = ["worker", "--lane", "gpu", "--model", "m", "--gpus", "all", "--tensor-parallel", "3"]
    refused = run(words, 60, env=machine.environment)
    assert refused.returncode == 2
    assert "2 GPUs cannot be divided into groups of 3" in refused.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--gpus", "all"], "a worker of lane api with these settings hosts no engine"),
        (["--gpus", "3", "--lane", "gpu"], "--gpus 3: 2 GPUs may be used here"),
        (["--gpus", "2", "--workers", "3", "--lane", "gpu"], "leave --workers out"),
    ],
)
@pytest.mark.parametrize("command", ["run", "serve"])
def test_gpus_of_one_machine_that_cannot_be_are_refused(
    command: str, words: list[str], told: str, machine: Machine, tmp_path: Path
) -> None:
    """`run` and `serve` take --gpus by the rule of `penstock worker`, and with it no --workers;
    before anything is started or written they say what cannot be, and what to leave out."""
    (tmp_path / "in.jsonl").write_text('{"id": "a", "text": "b"}\n')
    own = {
        "run": [str(tmp_path / "in.jsonl"), "--out", "out", "--prompt", "{text}", "--model", "m"],
        "serve": ["--port", "0", *(["--model", str(tmp_path)] if "gpu" in words else [])],
    }[command]
    with socket.create_server(("127.0.0.1", 0)) as provider:  # that is knocked at
        address = f"http://127.0.0.1:{provider.getsockname()[1]}/v1"
        variables = {**machine.environment, "PENSTOCK_PROVIDERS__DEFAULT__BASE_URL": address}
        refused = run([command, *own, *words], 60, env=variables, cwd=tmp_path)
    assert (refused.returncode, told in refused.stderr) == (2, True), refused.stderr
