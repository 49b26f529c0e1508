"""`penstock worker --gpus`: a worker process of its own for each card or group of cards, kept
running until SIGTERM.

Each is a new process, never a fork: what has started CUDA, or has threads of a library that does,
cannot be forked. This process imports neither vLLM nor torch. How it keeps them is the supervisor's
of `penstock run`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock_cli.cards.choose import Group
from penstock_cli.cards.probes import CardProbes
from penstock_cli.errors import UsageProblem
from penstock_cli.processes.supervisor import Supervisor
from penstock_cli.processes.worker_process import Policy
from penstock_cli.run.interrupts import Interrupts
from penstock_cli.settings import own_environment
from penstock_producer.reporting.text import safe

if TYPE_CHECKING:
    from penstock_workers.lanes.cards import Make
    from penstock_workers.settings import WorkerSettings

TICK_S = 0.25
DRAIN_MARGIN_S = (
    20.0  # beyond the workers' own drain time: the end of an engine and of what it has in memory
)
PAUSE_BASE_S = 2.0  # before a second start; memory of the engine that died is freed meanwhile
PORT_MAX = 65_535
CARD_ORDER = "CUDA_DEVICE_ORDER"
BY_ADDRESS = "PCI_BUS_ID"
"""The order in which nvidia-smi counts. CUDA's own is by speed, so that its number 0 may be another
card."""


@dataclass(frozen=True, slots=True)
class CardWorkers:
    """What is started: one worker for each of ``groups``, with the words of ``command`` and a
    name."""

    groups: Sequence[Group]
    make: Make
    variables: tuple[str, ...]  # that say which cards a process may use
    command: Sequence[str]
    name: str  # of them all; each has its cards in its own
    settings: WorkerSettings
    pause_base_s: float = PAUSE_BASE_S

    def named(self, number: int) -> str:
        """Celery's name of a worker: ``gpu-machine-17-card-0@machine``."""
        head, at, tail = self.name.partition("@")
        return f"{head}-{self._group(number).label}{at}{tail}"

    def words(self, number: int) -> list[str]:
        return [*self.command, "--name", self.named(number)]

    def environment(self, number: int, probes: Path) -> dict[str, str]:
        """What one worker has of its own: its cards, probe files and page of metrics."""
        group, settings = self._group(number), self.settings
        own = dict.fromkeys(self.variables, group.visible)
        own[f"PENSTOCK_{settings.lane.upper()}__CARDS"] = group.visible
        own["PENSTOCK_PROBE_DIR"] = str(probes)
        if settings.metrics_port is not None:
            own["PENSTOCK_METRICS_PORT"] = str(
                settings.metrics_port + number - 1 if settings.metrics_port else 0
            )
        if settings.cost.usd_per_gpu_hour is not None or settings.cost.card is not None:
            own["PENSTOCK_COST__GPUS"] = str(len(group.devices))
        return own

    def _group(self, number: int) -> Group:
        return self.groups[number - 1]


def check_ports(workers: CardWorkers) -> None:
    """Raises UsageProblem where there are fewer ports than workers."""
    port = workers.settings.metrics_port or 0
    if port + len(workers.groups) - 1 > PORT_MAX:
        raise UsageProblem(
            f"metrics_port = {port}: {len(workers.groups)} workers take a port each from there on, "
            f"and the last port is {PORT_MAX}: lower it"
        )


def serve(
    workers: CardWorkers, *, visible_given: bool, tell: Callable[[str], None] | None = None
) -> int:
    """Run until SIGTERM or Ctrl-C, which drain them all, or until none is left.

    Returns the worst of their exit statuses."""
    say = tell or _say
    with ExitStack() as exits:
        interrupts = exits.enter_context(Interrupts())
        interrupts.defer()
        given = workers.settings.probe_dir
        root = given or Path(
            exits.enter_context(tempfile.TemporaryDirectory(prefix="penstock-cards-"))
        )
        folders = {number: root / group.label for number, group in enumerate(workers.groups, 1)}
        names = {
            number: f"the worker of {group.label}" for number, group in enumerate(workers.groups, 1)
        }
        probes = CardProbes(given, folders, names)
        supervisor = Supervisor(
            workers.words,
            len(workers.groups),
            environment=_common(workers.make, visible_given=visible_given),
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
        for number, group in enumerate(workers.groups, 1):
            say(
                f"{names[number]} is started, with {workers.variables[0]}={group.visible}, as "
                f"{workers.named(number)}"
            )
        supervisor.start()
        _keep(supervisor, probes, asked_to_stop=lambda: interrupts.asked)
        probes.drain()
        if not supervisor.over:
            say("draining: each worker finishes what it holds; a second signal ends them at once")
        supervisor.stop(workers.settings.drain_seconds + DRAIN_MARGIN_S, hurry=interrupts.hurry)
        return supervisor.worst_status


def _keep(supervisor: Supervisor, probes: CardProbes, *, asked_to_stop: Callable[[], bool]) -> None:
    while not asked_to_stop() and not supervisor.over:
        supervisor.tick()
        probes.look(supervisor.workers)
        for worker in supervisor.workers:
            if worker.process is not None and (why := probes.stuck(worker.number)) is not None:
                supervisor.kill(worker.number, why)
        time.sleep(TICK_S)


def _common(make: Make, *, visible_given: bool) -> Mapping[str, str]:
    """Numbers that we counted are nvidia-smi's; numbers that were given keep the meaning that they
    had."""
    environment = own_environment()
    if make == "nvidia" and not visible_given:
        environment[CARD_ORDER] = BY_ADDRESS
    return environment


def _say(words: str) -> None:
    sys.stderr.write(f"{safe(words)}\n")
    sys.stderr.flush()
