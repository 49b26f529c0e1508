"""A machine whose programs follow a script, so that the kubelet's own timing is tested in virtual
time, without a process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubelet import Did, Image, Journal, Namespace
from kubelet.places import Places
from kubelet.pod import Pod
from kubelet.sandbox import Sandbox
from kubelet.variables import facts_of
from penstock_ratelimit.testing import run_virtual

KILLED = 137


@dataclass(frozen=True)
class Life:
    """One run of a program: how long it lasts, what it ends with, and how long it takes after
    SIGTERM (None: for ever)."""

    lasts_s: float | None = None
    code: int = 0
    after_term_s: float | None = 0.0


class ScriptedProcess:
    def __init__(self, pid: int, life: Life) -> None:
        self.pid = pid
        self._life = life
        self._loop = asyncio.get_running_loop()
        self._code: asyncio.Future[int] = self._loop.create_future()
        if life.lasts_s is not None:
            self._loop.call_later(life.lasts_s, self._end, life.code)

    async def wait(self) -> int:
        return await asyncio.shield(self._code)

    def terminate(self) -> None:
        if self._life.after_term_s is not None:
            self._loop.call_later(self._life.after_term_s, self._end, self._life.code)

    def kill(self) -> None:
        self._end(KILLED)

    def _end(self, code: int) -> None:
        if not self._code.done():
            self._code.set_result(code)


@dataclass
class ScriptedMachine:
    """``lives`` by the program's name, the last one again and again; ``answers`` are commands:
    their exit status at a time."""

    lives: Mapping[str, Sequence[Life]] = field(default_factory=dict)
    answers: Mapping[str, Callable[[float], int]] = field(default_factory=dict)
    takes_s: float = 0.0  # what each command takes
    asked: list[tuple[str, float]] = field(default_factory=list)
    _started: list[str] = field(default_factory=list)

    async def start(
        self, argv: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path
    ) -> ScriptedProcess:
        name = argv[0]
        if name not in self.lives:
            raise FileNotFoundError(f"no such program: {name}")
        life = self.lives[name][min(self._started.count(name), len(self.lives[name]) - 1)]
        self._started.append(name)
        return ScriptedProcess(len(self._started), life)

    async def output_of(
        self, argv: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> tuple[int, str]:
        now = asyncio.get_running_loop().time()
        self.asked.append((argv[0], round(now, 3)))
        await asyncio.sleep(self.takes_s)
        return self.answers[argv[0]](now), "says so"


class World:
    """A pod on such a machine, and what is seen of it."""

    def __init__(self, folder: Path, machine: ScriptedMachine, spec: Mapping[str, Any]) -> None:
        self.loop = asyncio.get_running_loop()
        self.machine = machine
        self.journal = Journal(self.loop.time)
        manifest = {"metadata": {"name": "p"}, "spec": spec}
        namespace = Namespace()
        self.pod = Pod(
            manifest,
            Sandbox(
                name="p",
                folder=folder,
                grace_s=spec.get("terminationGracePeriodSeconds", 30.0),
                pace=1.0,
                places=Places(folder, folder / "claims", "127.0.0.1", spec, namespace),
                facts=facts_of(manifest, address="127.0.0.1", node="n"),
                namespace=namespace,
                images={"scripted": Image()},
                journal=self.journal,
                machine=machine,
            ),
        )

    def when(self, *did: Did, container: str = "main") -> list[float]:
        """The seconds at which these things happened to a container."""
        return [round(event.at, 3) for event in self.journal.of("p", *did, container=container)]

    def order(self, *did: Did) -> list[tuple[str, Did, float]]:
        return [
            (event.container, event.did, round(event.at, 3)) for event in self.journal.of("p", *did)
        ]

    async def delete_at(self, second: float, grace_s: float | None = None) -> None:
        await asyncio.sleep(second - self.loop.time())
        await self.pod.delete(grace_s)


def scripted(name: str, **more: Any) -> dict[str, Any]:
    """A container that runs the program of its own name."""
    return {"name": name, "image": "scripted", "command": [name], **more}


def play(
    folder: Path,
    machine: ScriptedMachine,
    spec: Mapping[str, Any],
    *,
    until_s: float | None = None,
    beside: Callable[[World], Coroutine[Any, Any, None]] | None = None,
) -> World:
    """Runs a pod until it is over, or until a second, with something ``beside`` it; gives what was
    seen."""

    async def main() -> World:
        world = World(folder, machine, spec)
        other = asyncio.create_task(beside(world)) if beside else None
        try:
            async with asyncio.timeout(until_s):
                await world.pod.run()
        except TimeoutError:
            pass
        if other is not None:
            await other
        return world

    return run_virtual(main())
