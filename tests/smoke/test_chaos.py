"""`penstock chaos` as an operator runs it: what it says, how it ends, and that nothing of it is
left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet import until
from forked import FROM_NOTHING, Penstock, run

LIMIT_S = 900


def chaos(tmp: Path, *words: str, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """Its temporary folders are below ``tmp``."""
    return run(["chaos", *words], limit_s, env=variables(tmp))


def variables(tmp: Path) -> dict[str, str]:
    """What it starts is found by its variables, which a forked process shows none of."""
    return os.environ | {"TMPDIR": str(tmp), FROM_NOTHING: "1"}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that others may enter: under root PostgreSQL is another user."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def holds(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    print(done.stderr)
    assert done.returncode == 0, done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def places_in(folder: Path) -> dict[Path, str]:
    """Processes that name a folder, in `/proc`, with their command lines and own folders."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            said = (place / "cmdline").read_bytes() + str((place / "cwd").readlink()).encode()
            variables = (place / "environ").read_bytes()
        except OSError:
            continue
        ours = int(place.name) == os.getpid()
        if not ours and (os.fsencode(folder) in said or os.fsencode(f"{folder}/") in variables):
            found[place] = said.decode(errors="replace")
    return found


def processes_in(folder: Path) -> list[str]:
    return list(places_in(folder).values())


def states_in(folder: Path) -> str:
    """The states of these processes, as `ps` names them: T for one that stands still."""
    states = ""
    for place in places_in(folder):
        with contextlib.suppress(OSError):
            states += (place / "stat").read_text().rpartition(") ")[2][0]
    return states


def test_a_kill_and_a_redis_that_forgets(tmp_path: Path) -> None:
    """A worker dies and Redis forgets all: every promise holds, and nothing is left behind."""
    done = chaos(
        tmp_path, "--json", "--seed", "1", "--documents", "100", "--faults", "kill,flushall"
    )
    found = holds(done)
    assert {name for one in found["faults"] for name in one["faults"]} == {"kill", "flushall"}
    assert all(one["holds"] for one in found["faults"])
    assert "everything that was started has ended" in done.stderr
    assert (list(tmp_path.iterdir()), processes_in(tmp_path)) == ([], [])


@pytest.mark.whole
@pytest.mark.parametrize("lane", ["api", "batch"])
def test_minutes_of_it(tmp_path: Path, lane: str) -> None:
    """Whatever comes by a new seed, alone and in pairs: every promise holds."""
    assert holds(chaos(tmp_path, "--json", "--minutes", "2.5", "--lane", lane))["holds"]


@pytest.mark.whole
def test_with_postgresql_between_proxies(tmp_path: Path, postgres_url: str) -> None:
    """The database commits and its answers are lost; it is out of reach; it ends connections. The
    same seed may be played again in it."""
    names = "committed-and-reply-lost,partition-from-the-database,database-away"
    words = ("--json", "--seed", "1", "--database-url", postgres_url, "--break-mine", "--faults")
    assert len(holds(chaos(tmp_path, *words, names))["faults"]) == 3
    assert holds(chaos(tmp_path, *words, "database-away"))["holds"]


@pytest.mark.whole
def test_a_postgresql_of_its_own_and_a_bucket(open_folder: Path) -> None:
    """PostgreSQL is killed whole and in part, and the bucket refuses or answers 500 for what it
    did: every promise holds, and nothing is left behind."""
    words = ("--json", "--postgres", "--faults", "sql,bucket")
    assert len(holds(chaos(open_folder, *words))["faults"]) == 5
    assert (list(open_folder.iterdir()), processes_in(open_folder)) == ([], [])


@pytest.mark.parametrize(
    ("number", "more"),
    [
        pytest.param(signal.SIGINT, (), id="ctrl-c"),
        pytest.param(signal.SIGKILL, (), id="kill -9"),
        pytest.param(
            signal.SIGKILL, ("--postgres",), id="with PostgreSQL", marks=pytest.mark.whole
        ),
    ],
)
def test_nothing_outlives_it(
    open_folder: Path, number: signal.Signals, more: tuple[str, ...]
) -> None:
    """Ctrl-C and kill -9 in the middle of a fault end Redis, provider and workers, and its folder
    is gone. An interrupt breaks no promise."""
    shown = open_folder / "screen"
    with shown.open("wb") as screen:
        running = Penstock(
            ["chaos", "--faults", "freeze", *more],
            stdout=screen,
            stderr=screen,
            env=variables(open_folder),
        )
    until(
        lambda: "T" in states_in(open_folder) or running.poll() is not None, 120, "a worker stands"
    )
    assert running.poll() is None, shown.read_text()
    assert len(processes_in(open_folder)) > 3
    running.send_signal(number)
    running.wait(60)
    until(lambda: processes_in(open_folder) == [], 30, "nothing of it runs")
    until(lambda: list(open_folder.iterdir()) == [shown], 30, "its folders are gone")
    if number is signal.SIGINT:
        assert running.returncode == 130
        assert "everything that was started has ended" in shown.read_text()
        assert "BROKEN" not in shown.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--faults", "kil"), "there is no fault or group 'kil'; did you mean 'kill'?"),
        (("--faults", "batches-expire"), "none of batches-expire is of lane api"),
        (("--lane", "cpu"), "chaos knows api, batch, gpu, embed"),
        (("--postgres", "--database-url", "sqlite:///x", "--break-mine"), "two ledgers"),
        (("--redis-url", "redis://127.0.0.1:1/0"), "--break-mine"),
        (("--redis-url", "redis://127.0.0.1:1/0", "--break-mine"), "no Redis answers there"),
        (("--folder", "/"), "is there already"),
    ],
)
def test_what_it_refuses(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    """A wrong word, a server without permission or without an answer: refused before anything is
    broken, with the reason, and nothing is left."""
    began = time.monotonic()
    done = chaos(tmp_path, *words, limit_s=60)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert time.monotonic() - began < 30
    assert list(tmp_path.iterdir()) == []
