"""Promises of the probes: who is alive, who is ready, and who must grow old."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock_workers.celery_app.liveness import Liveness
from penstock_workers.celery_app.probe import (
    ALIVE,
    MAX_AGE_S,
    READY,
    STARTED,
    ProbeFiles,
    check,
    main,
)


@dataclass
class Leases:
    claim_heard_at: float | None = 0.0
    kept_at: float | None = 0.0


@dataclass
class Engine:
    why: str | None = None
    waits_for: str | None = None

    def stuck(self) -> str | None:
        return self.why

    def trouble(self) -> str | None:
        return self.waits_for


class House:
    """A pulse with a clock that the test moves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 0.0
        self.rests = False
        self.engine = Engine()
        self.leases = Leases()
        self.liveness = Liveness(
            ProbeFiles(folder),
            self.leases,
            may_rest=lambda: self.rests,
            engine=self.engine,
            stalled_s=45,
            clock=lambda: self.now,
        )

    def touches(self) -> bool:
        (self.folder / ALIVE).unlink(missing_ok=True)
        self.liveness.beat()
        return (self.folder / ALIVE).exists()


@pytest.fixture
def house(tmp_path: Path) -> House:
    house = House(tmp_path)
    house.liveness.connected()
    return house


def test_a_worker_that_claims_is_alive(house: House) -> None:
    """An idle worker asks for messages all the time, and that is enough."""
    house.now = house.leases.claim_heard_at = house.leases.kept_at = 1000.0
    assert house.touches()


def test_a_stuck_loop_of_the_engine_grows_old(house: House) -> None:
    """A control process whose loop never comes back is not alive, however well it consumes; its
    drain is no such case."""
    house.engine.why = "the control loop has been stuck in one round for minutes"
    assert not house.touches()
    house.liveness.drain()
    assert house.touches()


def test_the_probe_says_what_a_worker_waits_for(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    """A store that is away ends no worker, and who asks the probe reads what is away, until it is
    back (A4)."""
    house.engine.waits_for = (
        "outcomes wait to be stored for up to 340 s: SQL is away (OperationalError: \ud800 refused)"
    )
    assert house.touches()
    assert main(["alive", f"--dir={house.folder}"]) == 0
    assert "SQL is away (OperationalError: ? refused)" in capsys.readouterr().out
    house.engine.waits_for = None
    house.liveness.beat()
    assert main(["alive", f"--dir={house.folder}"]) == 0
    assert capsys.readouterr().out == "alive\n"


def test_alive_but_consuming_nothing_grows_old(house: House) -> None:
    """No claim for longer than the limit, though there is room and Redis answers: the file is left
    alone."""
    house.now = house.leases.kept_at = 45.0
    assert house.touches()
    house.now = house.leases.kept_at = 45.1
    assert not house.touches()


def test_an_outage_of_redis_is_no_reason_to_die(house: House) -> None:
    """While no connection of the process reaches Redis, nothing is asked of its consumer, for
    however long."""
    house.leases.claim_heard_at, house.leases.kept_at = 10.0, 9.0
    assert all(house.touches() for house.now in (20.0, 54.0, 54.1, 56.0, 3600.0, 86_400.0))


def test_a_reconnect_gets_the_whole_time_again(house: House) -> None:
    """After an outage a worker has as long to claim as at its start, while its lease keeper is back
    at once."""
    house.now = 600.0
    house.liveness.reconnecting()
    house.now = house.leases.kept_at = 605.0
    assert house.touches(), "the consumer is still connecting"
    house.liveness.connected()
    house.now = house.leases.kept_at = 650.0
    assert house.touches()
    house.now = house.leases.kept_at = 650.1
    assert not house.touches()


def test_who_waits_with_good_reason_is_alive(house: House) -> None:
    """A full worker, one whose queues were cancelled, and one that drains claim nothing, as they
    should."""
    house.now = house.leases.kept_at = 500.0
    assert not house.touches()
    house.rests = True
    assert house.touches()
    house.rests = False
    house.liveness.drain()
    assert house.touches()


def test_another_transport_is_judged_by_its_loop(house: House) -> None:
    """Stock kombu and other brokers do not claim as Penstock does: a hub that turns is all that can
    be asked."""
    house.leases.claim_heard_at = house.leases.kept_at = None
    house.now = 5000.0
    assert house.touches()


def test_ready_is_from_the_first_connection_to_the_drain(tmp_path: Path) -> None:
    """Ready begins when the consumer first connects and ends with the drain; an outage does not end
    it."""
    house = House(tmp_path)
    assert check(str(tmp_path), READY) is not None
    house.liveness.connected()
    house.liveness.reconnecting()
    assert check(str(tmp_path), READY) is None
    house.liveness.drain()
    assert check(str(tmp_path), READY) is not None
    house.liveness.connected()
    assert check(str(tmp_path), READY) is not None, "a drain is final"


def test_only_alive_has_an_age(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`started` and `ready` hold until they are taken back; `alive` must be young.

    The one line says what is wrong."""
    probes = ProbeFiles(tmp_path)
    probes.started()
    probes.ready()
    for state in (ALIVE, READY, STARTED):
        os.utime(tmp_path / state, (0, 0))
    assert [main([state, "--dir", str(tmp_path)]) for state in (READY, STARTED, ALIVE)] == [0, 0, 1]
    assert "the loop does no work" in capsys.readouterr().out.splitlines()[-1]
    probes.alive()
    assert main(["alive", "--dir", str(tmp_path), "--max-age", str(MAX_AGE_S)]) == 0


@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(),
    reason="no /proc here: a process cannot be distinguished from a later one with its pid",
)
def test_files_of_a_dead_process_count_for_nothing(tmp_path: Path) -> None:
    """A folder outlives a container that is restarted: what the dead one wrote says nothing of the
    next."""
    script = (
        "import sys; from pathlib import Path; from penstock_workers.celery_app.probe import "
        "ProbeFiles\n"
    )
    script += "files = ProbeFiles(Path(sys.argv[1])); files.started(); files.ready(); files.alive()"
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    for state in (ALIVE, READY, STARTED):
        assert "a process that has ended" in (check(str(tmp_path), state) or "")
    ProbeFiles(tmp_path)
    assert not list(tmp_path.iterdir()), "a new process starts from nothing"


def test_the_program_needs_little(tmp_path: Path) -> None:
    """It runs every few seconds beside each worker, so it imports none of the libraries that
    workers stand on."""
    script = "import sys; from penstock_workers.celery_app.probe import main; main(sys.argv[1:]);"
    heavy = {
        "celery",
        "kombu",
        "redis",
        "sqlalchemy",
        "asyncio",
        "argparse",
        "pathlib",
        "prometheus_client",
    }
    script += f"print(sorted({heavy} & set(sys.modules)))"
    asked = [sys.executable, "-c", script, "alive", "--dir", str(tmp_path)]
    assert (
        subprocess.run(asked, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
        == "[]"
    )


def test_without_a_folder_nothing_is_written_and_the_question_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Off by default; a probe that knows no folder is misused, which is no statement about the
    worker."""
    probes = ProbeFiles(None)
    probes.started()
    probes.alive()
    probes.unready()
    monkeypatch.delenv("PENSTOCK_PROBE_DIR", raising=False)
    assert main(["alive"]) == 2
    assert "PENSTOCK_PROBE_DIR" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [[], ["well"], ["alive", "ready"], ["alive", "--max-age", "soon"], ["alive", "-v"]]
)
def test_a_question_that_makes_no_sense_is_no_answer(words: list[str], tmp_path: Path) -> None:
    """Exit status 2, so that a mistake in a chart is not taken for a dead worker."""
    assert main([*words, f"--dir={tmp_path}"]) == 2
