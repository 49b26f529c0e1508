"""A pod as Kubernetes 1.29 and newer runs it: what starts when, what ends when, and what its status
says meanwhile.

Init containers run one after another; those with `restartPolicy: Always` (native sidecars) stay,
and the next one starts once their startup probe has said yes. At the end main containers get
SIGTERM together, then sidecars in reverse, all within one grace period.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kubelet import variables
from kubelet.container import Container, Restart
from kubelet.images import image_of
from kubelet.sandbox import Sandbox


class Pod:
    """Belongs to the kubelet's loop. Raises Refused when it is made."""

    def __init__(self, manifest: Mapping[str, Any], sandbox: Sandbox) -> None:
        spec = manifest["spec"]
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            image_of(container, sandbox.images)
            variables.check(container, sandbox.facts)
        policy = Restart(spec.get("restartPolicy", "Always"))
        once = Restart.NEVER if policy is Restart.NEVER else Restart.ON_FAILURE
        self.sandbox = sandbox
        self.phase, self.reason = "Pending", ""
        self.init = [
            Container(found, sandbox, Restart(found.get("restartPolicy", once)))
            for found in spec.get("initContainers", ())
        ]
        self.main = [Container(found, sandbox, policy) for found in spec["containers"]]
        self.is_deleted = False
        self._deadline_s: float | None = spec.get("activeDeadlineSeconds")
        self._is_initialized = False
        self._began = _now()
        self._running: dict[str, asyncio.Task[int]] = {}

    @property
    def sidecars(self) -> list[Container]:
        return [container for container in self.init if container.restart is Restart.ALWAYS]

    @property
    def containers(self) -> list[Container]:
        return [*self.init, *self.main]

    @property
    def is_over(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def is_ready(self) -> bool:
        asked = [*self.sidecars, *self.main]
        return (
            self._is_initialized
            and not self.is_over
            and all(container.ready for container in asked)
        )

    async def run(self) -> None:
        """Until every main container has ended for good, or the pod was deleted."""
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._work()
        except TimeoutError:
            self.reason = "DeadlineExceeded"
            await self.delete(self.sandbox.grace_s)
            self.phase = "Failed"
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def delete(self, grace_s: float | None = None) -> None:
        """Returns when nothing of it runs any more."""
        self.is_deleted = True
        deadline = asyncio.get_running_loop().time() + (
            self.sandbox.grace_s if grace_s is None else grace_s
        )
        sidecars = self.sidecars
        await asyncio.gather(*(one.end(deadline) for one in self.containers if one not in sidecars))
        await self._end_sidecars(deadline)

    async def _end_sidecars(self, deadline: float) -> None:
        for one in reversed(self.sidecars):
            await one.end(deadline)

    async def _work(self) -> None:
        for one in self.init:
            if not await self._init(one):
                await self._finish("Failed")
                return
        self._is_initialized = True
        self.phase = "Running"
        mains = [self._start(one) for one in self.main]
        await asyncio.wait(mains, return_when=asyncio.FIRST_EXCEPTION)
        await self._finish(
            "Failed" if any(task.result() for task in mains if task.done()) else "Succeeded"
        )

    async def _init(self, one: Container) -> bool:
        """Whether what comes after it may start."""
        if self.is_deleted:
            return False
        ended = self._start(one)
        if one.restart is not Restart.ALWAYS:
            return await asyncio.shield(ended) == 0
        up = asyncio.create_task(one.started.wait())
        await asyncio.wait({up, ended}, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        return not ended.done() and not self.is_deleted

    def _start(self, one: Container) -> asyncio.Task[int]:
        self._running[one.name] = asyncio.create_task(one.run())
        return self._running[one.name]

    async def _finish(self, phase: str) -> None:
        """Sidecars serve main containers: they end when those have, and their exit codes count for
        nothing."""
        if not self.is_deleted:
            deadline = asyncio.get_running_loop().time() + self.sandbox.grace_s
            await self._end_sidecars(deadline)
        await asyncio.gather(
            *(self._running[one.name] for one in self.sidecars if one.name in self._running)
        )
        self.phase = phase

    # -- the status --------------------------------------------------------------------------------

    @property
    def status(self) -> dict[str, Any]:
        """As the API has it."""
        ready = _condition("Ready", self.is_ready)
        return {
            "phase": self.phase,
            "reason": self.reason,
            "podIP": self.sandbox.places.address,
            "startTime": self._began,
            "conditions": [
                _condition("PodScheduled", True),
                _condition("Initialized", self._is_initialized),
                ready | {"type": "ContainersReady"},
                ready,
            ],
            "initContainerStatuses": [one.status for one in self.init],
            "containerStatuses": [one.status for one in self.main],
        }

    def describe(self) -> str:
        """For a failing test: events, and the end of what each container said."""
        tails = [f"---- {one.name}\n{_tail(self.sandbox, one)}" for one in self.containers]
        return "\n".join(
            [
                f"==== {self.sandbox.name}: {self.phase}",
                self.sandbox.journal.text(self.sandbox.name),
                *tails,
            ]
        )


def _condition(kind: str, holds: bool) -> dict[str, str]:
    return {"type": kind, "status": "True" if holds else "False"}


def _tail(sandbox: Sandbox, one: Container, longest: int = 4_000) -> str:
    log = sandbox.log(one.name)
    return log.read_text(errors="replace")[-longest:] if log.exists() else ""


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
