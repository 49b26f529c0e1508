"""Run a worker process on each GPU, or group of GPUs, that `penstock worker --gpus` names.

Which devices that are stands first, then the supervisor of their processes and the one probe file
that speaks for all of them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock_cli.errors import UsageProblem
from penstock_cli.processes.signals import Interrupts
from penstock_cli.processes.supervisor import Policy, Supervisor
from penstock_cli.settings import first_set, own_environment
from penstock_producer.reporting.text import counted, safe
from penstock_workers.celery_app.probe import ALIVE, READY, STARTED, ProbeFiles, check, note_of

if TYPE_CHECKING:
    from penstock_cli.processes.supervisor import Worker
    from penstock_workers.lanes.devices import Device, GpusSeen
    from penstock_workers.settings import WorkerSettings


LEAVE_OUT = "to run on the CPU leave --gpus out"
GPU_ORDER = "CUDA_DEVICE_ORDER"
BY_ADDRESS = "PCI_BUS_ID"
"""The order in which nvidia-smi counts. CUDA's own is by speed, so that its number 0 may be another
card."""
SHOWN_MAX = 16  # devices that an error names


class Group(NamedTuple):
    """The cards of one worker."""

    places: tuple[int, ...]  # in the list of those that may be used
    devices: tuple[Device, ...]

    @property
    def label(self) -> str:
        """``card-0`` or ``cards-0-1``: in names of workers, folders and logs."""
        return f"card{'s' if len(self.places) > 1 else ''}-{'-'.join(map(str, self.places))}"

    @property
    def visible(self) -> str:
        return ",".join(device.name for device in self.devices)


class Visible(NamedTuple):
    """A variable that this process was started with: which cards it may use."""

    variable: str
    text: str


def groups(asked: str, seen: GpusSeen, visible: Visible | None, each: int) -> list[Group]:
    """Return the groups of GPUs, one for each worker; ``each`` is how many one engine uses."""
    usable = usable_devices(seen, visible)
    places = _places(asked, usable)
    if len(places) % each:
        raise UsageProblem(
            f"--gpus {asked}: {counted(len(places), 'GPU')} cannot be divided into groups of "
            f"{each}, the GPUs of one engine (tensor, pipeline and data parallel sizes "
            f"multiplied): give a multiple of {each}, or another tensor_parallel_size"
        )
    divided = [usable[place] for place in places if usable[place].is_slice]
    if divided and each > 1:
        raise UsageProblem(
            f"--gpus {asked}: {divided[0].name} is a MIG slice, and slices cannot work together in "
            "one engine: leave tensor_parallel_size out, or give whole GPUs"
        )
    parts = [tuple(places[start : start + each]) for start in range(0, len(places), each)]
    return [Group(part, tuple(usable[place] for place in part)) for part in parts]


def usable_devices(seen: GpusSeen, visible: Visible | None) -> tuple[Device, ...]:
    """Return the GPUs of the machine, or the part of them that the variable leaves."""
    if not seen.devices:
        raise UsageProblem(f"no GPU was found: {seen.looked}; {LEAVE_OUT}")
    if visible is None:
        return seen.devices
    given = f"{visible.variable}={visible.text!r}"
    names = [name.strip() for name in visible.text.split(",")] if visible.text.strip() else []
    if not names or names == ["-1"]:
        raise UsageProblem(
            f"no GPU was found: {seen.looked}, and {given} leaves none of them: unset it, or "
            f"{LEAVE_OUT}"
        )
    found = tuple(_named(name, given, seen) for name in names)
    _refuse_twice(given, found)
    return found


def _named(name: str, given: str, seen: GpusSeen) -> Device:
    """Find a GPU by its number, or by the beginning of its UUID, as CUDA takes them.

    It keeps the name that was given.
    """
    if name.isdecimal():
        found = [device for device in seen.devices if device.name == name]
    else:
        found = [device for device in seen.devices if name and device.uuid.startswith(name)]
    if len(found) == 1:
        return found[0]._replace(name=name)
    why = "names several GPUs" if found else "is not a GPU of this machine"
    raise UsageProblem(f"{given}: {name!r} {why}: {seen.looked} ({_shown(seen.devices)})")


def _places(asked: str, usable: Sequence[Device]) -> list[int]:
    text = asked.strip()
    if text == "all":
        return list(range(len(usable)))
    if text.isdecimal() and len(text) < 10:
        return _first(int(text), usable)
    names = [name.strip() for name in text.removesuffix(",").split(",")]
    places = [_place(name, asked, usable) for name in names]
    _refuse_twice(f"--gpus {asked}", [usable[place] for place in places])
    return places


def _first(count: int, usable: Sequence[Device]) -> list[int]:
    if count == 0:
        raise UsageProblem(
            "--gpus 0 is not a number of GPUs: a number alone is how many; for GPU 0 alone give "
            "`--gpus 0,`"
        )
    if count > len(usable):
        raise UsageProblem(
            f"--gpus {count}: {counted(len(usable), 'GPU')} may be used here ({_shown(usable)}): "
            "give that many or fewer, or `all`"
        )
    return list(range(count))


def _place(name: str, asked: str, usable: Sequence[Device]) -> int:
    if name.isdecimal() and len(name) < 10 and int(name) < len(usable):
        return int(name)
    found = (
        []
        if name.isdecimal()
        else [place for place, one in enumerate(usable) if name and name == one.uuid]
    )
    if found:
        return found[0]
    raise UsageProblem(
        f"--gpus {asked}: there is no GPU {name!r}: {counted(len(usable), 'GPU')} may be used "
        f"here ({_shown(usable)}). Give `all`, how many, or a list of numbers from 0 to "
        f"{len(usable) - 1} such as `0,1`"
    )


def _refuse_twice(given: str, devices: Sequence[Device]) -> None:
    seen: set[tuple[str, str]] = set()
    for device in devices:
        key = ("", device.uuid) if device.uuid else (device.name, "")
        if key in seen:
            raise UsageProblem(f"{given} names {device.name!r} twice: give each GPU once")
        seen.add(key)


def _shown(devices: Sequence[Device]) -> str:
    named = [f"{place}: {one.uuid or one.name}" for place, one in enumerate(devices[:SHOWN_MAX])]
    more = f", and {len(devices) - SHOWN_MAX} more" if len(devices) > SHOWN_MAX else ""
    return ", ".join(named) + more


@dataclass(frozen=True, slots=True)
class Cards:
    """The GPUs that were asked for, one group of them for each worker."""

    settings: WorkerSettings  # of their lane
    groups: Sequence[Group]
    variables: tuple[str, ...]  # that say which cards a process may use
    order: Mapping[str, str]  # the variable by which our numbers are nvidia-smi's, where they are

    def of_worker(self, number: int) -> dict[str, str]:
        """Return the variables by which one worker of the lane has its cards, and their price."""
        settings, group = self.settings, self.groups[number - 1]
        own = {**self.order, **dict.fromkeys(self.variables, group.visible)}
        own[f"PENSTOCK_{settings.lane.upper()}__CARDS"] = group.visible
        if settings.cost.usd_per_gpu_hour is not None or settings.cost.card is not None:
            own["PENSTOCK_COST__GPUS"] = str(len(group.devices))
        return own


def cards_asked(given: str | int, settings: WorkerSettings) -> Cards:
    """Return the GPUs that ``--gpus`` names for workers of this lane.

    Raises UsageProblem where it hosts no engine on GPUs of this machine, or they are not there.
    """
    from penstock_workers.lanes.devices import VARIABLES, gpus_seen

    asked, own = str(given), settings.of_lane(settings.lane)
    each = None if own is None else own.cards_per_engine()
    if each is None:
        raise UsageProblem(
            f"--gpus {asked}: a worker of lane {settings.lane} with these settings hosts no engine "
            "on GPUs that can be divided (a server beside it has its own): leave --gpus out, or "
            "take --lane gpu"
        )
    seen = gpus_seen()
    variables = VARIABLES[seen.make]
    inherited = first_set(variables)
    chosen = groups(asked, seen, None if inherited is None else Visible(*inherited), each)
    # numbers that were given keep the meaning that they had
    counted_here = seen.make == "nvidia" and inherited is None
    return Cards(settings, chosen, variables, {GPU_ORDER: BY_ADDRESS} if counted_here else {})


class GpuProbes:
    """``folder`` is where an orchestrator looks, None where none does.

    Each worker has a folder of its own, by number."""

    def __init__(
        self, folder: Path | None, of_workers: Mapping[int, Path], names: Mapping[int, str]
    ) -> None:
        self._files = ProbeFiles(folder)
        self._folders = {number: str(path) for number, path in of_workers.items()}
        self._names = names
        self._has_started = self._is_ready = False

    def is_up(self, number: int) -> bool:
        """Return whether a worker's start is over: its model is loaded."""
        return check(self._folders[number], STARTED) is None

    def stuck(self, number: int) -> str | None:
        """Return why a worker that was up does no work; None while it works, or still starts."""
        return check(self._folders[number], ALIVE) if self.is_up(number) else None

    def look(self, workers: list[Worker]) -> None:
        """Write the probe files for all workers together.

        Started once each worker is up or given up; ready while one of them is; alive as long as
        this is called."""
        running = [worker.number for worker in workers if not worker.over]
        if not self._has_started and all(self.is_up(number) for number in running):
            self._has_started = True
            self._files.started()
        is_ready = any(check(self._folders[number], READY) is None for number in running)
        if is_ready and not self._is_ready:
            self._files.ready()
        elif self._is_ready and not is_ready:
            self._files.unready()
        self._is_ready = is_ready
        if self._has_started:
            self._files.alive()
        notes = {number: note_of(self._folders[number]) for number in running}
        said = [f"{self._names[number]}: {note}" for number, note in notes.items() if note]
        given_up = [
            self._names[worker.number] for worker in workers if worker.over and worker.status
        ]
        self._files.note("; ".join([*said, *(f"{name} is given up" for name in given_up)]) or None)

    def drain(self) -> None:
        self._files.unready()


TICK_S = 0.25
# beyond the workers' own drain time: the end of an engine and of what it has in memory
DRAIN_MARGIN_S = 20.0
PAUSE_BASE_S = 2.0  # before a second start; memory of the engine that died is freed meanwhile
PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class GpuWorkers:
    """The workers to start: one for each group of ``cards``, with ``command`` and a name."""

    cards: Cards
    command: Sequence[str]
    name: str  # of them all; each has its cards in its own
    pause_base_s: float = PAUSE_BASE_S

    def named(self, number: int) -> str:
        """Return Celery's name of a worker: ``gpu-machine-17-card-0@machine``."""
        head, at, tail = self.name.partition("@")
        return f"{head}-{self.cards.groups[number - 1].label}{at}{tail}"

    def words(self, number: int) -> list[str]:
        return [*self.command, "--name", self.named(number)]

    def environment(self, number: int, probes: Path) -> dict[str, str]:
        """Return what one worker has of its own: its cards, probe files and page of metrics."""
        settings, own = self.cards.settings, self.cards.of_worker(number)
        own["PENSTOCK_PROBE_DIR"] = str(probes)
        if settings.metrics_port is not None:
            own["PENSTOCK_METRICS_PORT"] = str(
                settings.metrics_port + number - 1 if settings.metrics_port else 0
            )
        return own


def check_ports(workers: GpuWorkers) -> None:
    """Refuse fewer ports than workers. Raises UsageProblem."""
    port, number = workers.cards.settings.metrics_port or 0, len(workers.cards.groups)
    if port + number - 1 > PORT_MAX:
        raise UsageProblem(
            f"metrics_port = {port}: {number} workers take a port each from there on, "
            f"and the last port is {PORT_MAX}: lower it"
        )


def serve(workers: GpuWorkers, tell: Callable[[str], None] | None = None) -> int:
    """Run until SIGTERM or Ctrl-C, which drain them all, or until none is left.

    Returns the worst of their exit statuses."""
    say, cards = tell or _say, workers.cards
    with ExitStack() as exits:
        interrupts = exits.enter_context(Interrupts())
        interrupts.defer()
        given = cards.settings.probe_dir
        root = given or Path(
            exits.enter_context(tempfile.TemporaryDirectory(prefix="penstock-cards-"))
        )
        folders = {number: root / group.label for number, group in enumerate(cards.groups, 1)}
        names = {
            number: f"the worker of {group.label}" for number, group in enumerate(cards.groups, 1)
        }
        probes = GpuProbes(given, folders, names)
        supervisor = Supervisor(
            workers.words,
            len(cards.groups),
            environment=own_environment(),
            logs=None,
            tell=say,
            policy=Policy(
                each_alone=True,
                pause_base_s=workers.pause_base_s,
                is_up=probes.is_up,
                name=lambda number: names[number],
                variables=lambda number: workers.environment(number, folders[number]),
            ),
        )
        for number, group in enumerate(cards.groups, 1):
            say(
                f"{names[number]} is started, with {cards.variables[0]}={group.visible}, as "
                f"{workers.named(number)}"
            )
        supervisor.start()
        _keep(supervisor, probes, asked_to_stop=lambda: interrupts.asked)
        probes.drain()
        if not supervisor.over:
            say("draining: each worker finishes what it holds; a second signal ends them at once")
        supervisor.stop(cards.settings.drain_seconds + DRAIN_MARGIN_S, hurry=interrupts.hurry)
        return supervisor.worst_status


def _keep(supervisor: Supervisor, probes: GpuProbes, *, asked_to_stop: Callable[[], bool]) -> None:
    while not asked_to_stop() and not supervisor.over:
        supervisor.tick()
        probes.look(supervisor.workers)
        for worker in supervisor.workers:
            if worker.process is not None and (why := probes.stuck(worker.number)) is not None:
                supervisor.kill(worker.number, why)
        time.sleep(TICK_S)


def _say(words: str) -> None:
    sys.stderr.write(f"{safe(words)}\n")
    sys.stderr.flush()
