"""One container of a pod: its process, its restarts, and who asks how it is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from kubelet.journal import Did
from kubelet.namespace import Unresolved
from kubelet.probes import Probe, Target, ask
from kubelet.process import Process
from kubelet.sandbox import Prepared, Sandbox

BACK_OFF_S, BACK_OFF_CAP_S = 10.0, 300.0  # the first restart is at once, then 10, 20, 40 … s
# what SIGTERM gives at least, even where the grace period is over: kubelet's own minimum
LAST_WINDOW_S = 2.0
NEVER_RAN = 128  # exit code of a container whose command cannot be started


class Restart(StrEnum):
    ALWAYS, ON_FAILURE, NEVER = "Always", "OnFailure", "Never"


class Container:
    """Belongs to the kubelet's loop; its public fields may be read from anywhere."""

    def __init__(self, spec: Mapping[str, Any], sandbox: Sandbox, restart: Restart) -> None:
        self.spec = spec
        self.name: str = spec["name"]
        self.restart = restart
        self.restarts = 0
        self.pid: int | None = None
        self.started = asyncio.Event()
        self.ready = False
        self.state: dict[str, Any] = {"waiting": {"reason": "PodInitializing"}}
        self.last_state: dict[str, Any] = {}
        self._sandbox = sandbox
        self._probes = {
            kind: Probe.read(spec[kind], sandbox.pace)
            for kind in ("startupProbe", "readinessProbe", "livenessProbe")
            if kind in spec
        }
        self._process: Process | None = None
        self._target: Target | None = None
        self._exited = asyncio.Event()
        self._stopping = asyncio.Event()

    @property
    def status(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "image": self.spec["image"],
            "imageID": "",
            "ready": self.ready,
            "started": self.started.is_set(),
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": self.last_state,
        }

    async def run(self) -> int:
        """Until it ends for good; its last exit code."""
        while True:
            code = await self._once()
            if self._stopping.is_set() or not self._is_restarted_after(code):
                return code
            await self._back_off()
            if self._stopping.is_set():
                return code
            self.restarts += 1

    async def end(self, deadline: float) -> None:
        """preStop and SIGTERM now, SIGKILL at ``deadline`` of the loop's clock; it is not started
        again."""
        self._stopping.set()
        if self._process is not None and not self._exited.is_set():
            await self._end_process(deadline)

    async def execute(self, command: Sequence[str]) -> tuple[int, str]:
        """As `kubectl exec`, in a container that runs: exit status and output."""
        assert self._target is not None, f"{self.name} has not been started"
        return await self._target.run(command)

    # -- one life ----------------------------------------------------------------------------------

    async def _once(self) -> int:
        try:
            prepared = self._sandbox.prepare(self.spec)
            log = self._sandbox.log(self.name)
            process = await self._sandbox.machine.start(
                prepared.argv, prepared.environment, prepared.folder, log
            )
        except Unresolved as error:
            self._waits("CreateContainerConfigError", str(error))
            await self._stopping.wait()
            return NEVER_RAN
        except OSError as error:
            self._waits("RunContainerError", str(error))
            return NEVER_RAN
        return await self._live(process, prepared)

    async def _live(self, process: Process, prepared: Prepared) -> int:
        began = _now()
        self._process, self.pid, self._target = process, process.pid, prepared.target()
        self._exited.clear()
        self.state = {"running": {"startedAt": began}}
        self._did(Did.START, " ".join(prepared.argv))
        watch = asyncio.create_task(self._watch(self._target))
        try:
            # without a startup probe it is up at once, also where it has ended by now
            await asyncio.sleep(0)
            code = await process.wait()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        finally:
            watch.cancel()
            self._exited.set()
            self.started.clear()
            self._set_ready(False)
        reason = "Completed" if code == 0 else "Error"
        self.state = {
            "terminated": {
                "exitCode": code,
                "reason": reason,
                "startedAt": began,
                "finishedAt": _now(),
            }
        }
        self._did(Did.EXIT, str(code))
        (outcome,) = await asyncio.gather(watch, return_exceptions=True)
        if isinstance(outcome, Exception):
            raise outcome
        return code

    def _is_restarted_after(self, code: int) -> bool:
        return self.restart is Restart.ALWAYS or (self.restart is Restart.ON_FAILURE and code != 0)

    async def _back_off(self) -> None:
        self.last_state = self.state
        if self.restarts == 0:
            return
        delay_s = min(BACK_OFF_S * 2 ** (self.restarts - 1), BACK_OFF_CAP_S) / self._sandbox.pace
        self._waits("CrashLoopBackOff", f"back-off {delay_s:g} s", Did.BACK_OFF)
        try:
            async with asyncio.timeout(delay_s):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def _end_process(self, deadline: float) -> None:
        assert self._process is not None
        loop = asyncio.get_running_loop()
        await self._pre_stop(max(0.0, deadline - loop.time()))
        self._process.terminate()
        self._did(Did.TERM)
        try:
            async with asyncio.timeout(max(deadline - loop.time(), LAST_WINDOW_S)):
                await self._exited.wait()
        except TimeoutError:
            self._process.kill()
            self._did(Did.KILL)
        await self._exited.wait()

    async def _pre_stop(self, left_s: float) -> None:
        hook = self.spec.get("lifecycle", {}).get("preStop")
        if hook and self._target is not None:
            answer = await ask(hook, self._target, left_s)
            self._did(Did.PRE_STOP, answer or "")

    # -- probes ------------------------------------------------------------------------------------

    async def _watch(self, target: Target) -> None:
        if not await self._comes_up(target):
            await self._end_by(self._probes["startupProbe"])
            return
        self.started.set()
        self._did(Did.UP)
        if "readinessProbe" not in self._probes:
            self._set_ready(True)
        await asyncio.gather(self._ask_readiness(target), self._ask_liveness(target))

    async def _comes_up(self, target: Target) -> bool:
        probe = self._probes.get("startupProbe")
        if probe is None:
            return True
        await asyncio.sleep(probe.initial_delay_s)
        for asked in range(probe.failure_threshold):
            await asyncio.sleep(probe.period_s if asked else 0)
            if await self._says_yes(probe, target, "startup"):
                return True
        return False

    async def _ask_readiness(self, target: Target) -> None:
        probe = self._probes.get("readinessProbe")
        if probe is None:
            return
        await asyncio.sleep(probe.initial_delay_s)
        in_a_row = 0  # positive: so many times yes
        while True:
            yes = await self._says_yes(probe, target, "readiness")
            in_a_row = max(in_a_row, 0) + 1 if yes else min(in_a_row, 0) - 1
            if in_a_row >= probe.success_threshold or -in_a_row >= probe.failure_threshold:
                self._set_ready(in_a_row > 0)
            await asyncio.sleep(probe.period_s)

    async def _ask_liveness(self, target: Target) -> None:
        probe = self._probes.get("livenessProbe")
        if probe is None:
            return
        await asyncio.sleep(probe.initial_delay_s)
        failures = 0
        while not self._stopping.is_set():
            if await self._says_yes(probe, target, "liveness"):
                failures = 0
                self._did(Did.ALIVE)
            else:
                failures += 1
            if failures >= probe.failure_threshold:
                await self._end_by(probe)
                return
            await asyncio.sleep(probe.period_s)

    async def _says_yes(self, probe: Probe, target: Target, kind: str) -> bool:
        no = await probe.ask(target)
        if no is not None:
            self._did(Did.UNHEALTHY, f"{kind}: {no}")
        return no is None

    async def _end_by(self, probe: Probe) -> None:
        """A probe has failed too often: the process ends, and the restart policy decides."""
        if self._stopping.is_set():
            return
        grace_s = self._sandbox.grace_s if probe.grace_s is None else probe.grace_s
        await self._end_process(asyncio.get_running_loop().time() + grace_s)

    # -- the status --------------------------------------------------------------------------------

    def _set_ready(self, ready: bool) -> None:
        if ready is not self.ready:
            self.ready = ready
            self._did(Did.READY if ready else Did.UNREADY)

    def _waits(self, reason: str, message: str, did: Did = Did.FAIL) -> None:
        self.state = {"waiting": {"reason": reason, "message": message}}
        self._did(did, message)

    def _did(self, did: Did, message: str = "") -> None:
        self._sandbox.journal.add(self._sandbox.name, self.name, did, message)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
