"""How far the load of a model is, from played files and counters of the kernel."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock_workers.lanes import loading as subject
from penstock_workers.lanes.api.upstream import ServerWait
from penstock_workers.lanes.loading import (
    FETCHING,
    READING,
    STARTING,
    WARMING,
    Load,
    LoadWatch,
)

GIB = 1024**3
SIZE = 4 * GIB


class Machine:
    """A model, an engine's processes, and a clock that the test sets."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.model, self.cache = folder / "proc", folder / "model", folder / "cache"
        self.now = 100.0
        for made in (self.proc, self.model, self.cache / "blobs"):
            made.mkdir(parents=True)
        self.file(self.model / "model.safetensors", SIZE)

    def file(self, path: Path, size: int) -> None:
        with path.open("wb") as file:
            file.truncate(size)

    def reads(self, pid: int, text: str) -> None:
        (self.proc / str(pid)).mkdir(exist_ok=True)
        (self.proc / str(pid) / "io").write_text(text)

    def pids(self) -> list[int]:
        return [int(path.name) for path in self.proc.iterdir()]

    def watch(self, model: str | None = None) -> LoadWatch:
        return LoadWatch(
            "gpu.model",
            model or str(self.model),
            proc=self.proc,
            clock=lambda: self.now,
            cached=lambda _model: self.cache,
        )

    def look(self, model: str | None = None) -> Load:
        return self.watch(model).look(self.pids, began=58.0)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_load_goes_through_its_phases(machine: Machine) -> None:
    """Nothing read yet, weights being read by all its processes together, and what follows when
    they are read."""
    assert machine.look() == Load(STARTING, 0, SIZE, 42.0)
    machine.reads(1, f"rchar: {GIB}\nread_bytes: 10\n")
    machine.reads(2, f"rchar: 12\nread_bytes: {GIB}\n")
    assert machine.look() == Load(READING, 2 * GIB, SIZE, 42.0)
    assert machine.look().in_words() == "reading weights, 2.0 of 4.0 GiB after 42 s"
    machine.reads(1, f"rchar: {9 * GIB}\n")
    assert machine.look() == Load(WARMING, SIZE, SIZE, 42.0)
    assert machine.look().in_words() == "compiling and warming up, after 42 s"


def test_a_model_that_is_fetched_shows_what_has_come(machine: Machine) -> None:
    """Of a model given by its name: what lies in the cache grows until no file is unfinished."""
    machine.file(machine.cache / "blobs/one", GIB)
    machine.file(machine.cache / "blobs/two.incomplete", GIB)
    machine.reads(1, "rchar: 5\n")
    assert machine.look("org/model") == Load(FETCHING, 2 * GIB, 0, 42.0)
    (machine.cache / "blobs/two.incomplete").rename(machine.cache / "blobs/two")
    assert machine.look("org/model") == Load(READING, 5, 2 * GIB, 42.0)


@pytest.mark.parametrize(
    "text", ["", "\x00", "rchar: -5\n", "rchar: many\nread_bytes\n", "rchar 7\n"]
)
def test_counters_that_make_no_sense_count_as_nothing(text: str, machine: Machine) -> None:
    """What the kernel writes in another form, or a process that is gone meanwhile, is no error."""
    machine.reads(1, text)
    (machine.proc / "2").mkdir()
    assert machine.look().phase == STARTING


async def test_it_is_silent_before_and_after(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While it watches, the latest look is there and the log has a line now and then; when it is
    done, nothing is left."""
    monkeypatch.setattr(subject, "LOOK_S", 0.0)
    caplog.set_level("INFO")
    machine.reads(1, f"rchar: {GIB}\n")  # read before the load began
    watch = machine.watch()
    async with watch.during(machine.pids):
        while watch.latest is None or watch.latest.total == 0:  # noqa: ASYNC110 - a thread sets it
            await asyncio.sleep(0)
        assert watch.latest.phase == STARTING
        machine.reads(1, f"rchar: {2 * GIB}\n")
        machine.now += subject.SAY_EACH_S
        while ("reading weights, 1.0 of 4.0 GiB") not in caplog.text:  # noqa: ASYNC110 - a thread sets it
            await asyncio.sleep(0)
        assert watch.gauges()["load_bytes"] == GIB
    assert watch.gauges() == {}


async def test_a_server_that_has_no_model_yet_is_shown_without_its_password() -> None:
    """What the worker waits for and for how long, until the wait is over; never who it logs in
    as."""
    now = [5.0]
    url = "http://me:secret@engine:8000/v1"
    wait = ServerWait[str](url, 60.0, "gpu", clock=lambda: now[0])
    assert wait.gauges() == {}

    async def look() -> str:
        now[0] = 47.0
        assert wait.gauges() == {"loading": "waiting for the model of engine:8000, for 42 s"}
        return "tiny"

    assert await wait.model(look) == "tiny"
    assert wait.gauges() == {}


def test_files_that_come_from_a_bucket_show_how_far_they_are(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes of all bytes, in the same place as the load that follows, which is that of the folder
    where they lie then."""
    caplog.set_level("INFO")
    watch = machine.watch("s3://models/llama")
    with watch.fetching(SIZE) as note:
        machine.now += 42
        note(GIB)
        assert watch.gauges()["loading"] == "fetching the model, 1.0 of 4.0 GiB after 42 s"
        assert "gpu.model s3://models/llama: fetching the model, 1.0 of 4.0 GiB" in caplog.text
    assert watch.gauges() == {}
    watch.lies_in(str(machine.model))
    assert watch.look(machine.pids, began=58.0).total == SIZE
