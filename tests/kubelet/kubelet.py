"""Pods on an event loop in a thread of its own, and how tests see them from theirs."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from kubelet import fields
from kubelet.container import Container
from kubelet.images import Image
from kubelet.journal import Journal
from kubelet.namespace import Namespace
from kubelet.places import Places
from kubelet.pod import Pod
from kubelet.process import LocalMachine
from kubelet.sandbox import Sandbox
from kubelet.variables import facts_of

GRACE_S = 30.0  # Kubernetes' default
PATIENCE_S = 30.0  # beyond a grace period, on a busy machine
AGAIN_S = 0.1
EXECUTE_S = 120.0  # a command in a container, on a busy machine
MAX_PODS = 250  # one address of 127.x.y.0/24 each
T = TypeVar("T")


class RunningPod:
    """A pod as tests see it, from their own thread."""

    def __init__(self, kubelet: Kubelet, pod: Pod) -> None:
        self._kubelet = kubelet
        self._pod = pod
        self.name = pod.sandbox.name
        self.task: Future[None] = kubelet.submit(pod.run())

    @property
    def is_ready(self) -> bool:
        return self._pod.is_ready

    @property
    def is_deleted(self) -> bool:
        return self._pod.is_deleted

    @property
    def phase(self) -> str:
        return self._pod.phase

    @property
    def status(self) -> dict[str, Any]:
        return self._pod.status

    @property
    def grace_s(self) -> float:
        return self._pod.sandbox.grace_s

    @property
    def address(self) -> str:
        return self._pod.sandbox.places.address

    def volume(self, name: str) -> Path:
        return self._pod.sandbox.places.volume(name)

    def container(self, name: str) -> Container:
        return next(found for found in self._pod.containers if found.name == name)

    def exit_code(self, name: str) -> int | None:
        """Of its last life; None while it runs."""
        code: int | None = self.container(name).state.get("terminated", {}).get("exitCode")
        return code

    def log(self, name: str) -> str:
        return self._pod.sandbox.log(name).read_text(errors="replace")

    def execute(self, name: str, *command: str) -> str:
        """As `kubectl exec`: what a command in a container says, once it has succeeded."""
        status, output = self._kubelet.submit(self.container(name).execute(command)).result(
            EXECUTE_S
        )
        assert status == 0, f"{' '.join(command)}: exit status {status}: {output}"
        return output

    def describe(self) -> str:
        return self._pod.describe()

    def delete(self, grace_s: float | None = None) -> None:
        """As `kubectl delete pod --wait`."""
        longest = (self.grace_s if grace_s is None else grace_s) + PATIENCE_S
        self._kubelet.submit(self._pod.delete(grace_s)).result(longest)
        self.wait(PATIENCE_S)

    def start_deleting(self, grace_s: float) -> None:
        self._kubelet.submit(self._pod.delete(grace_s))

    def wait(self, timeout_s: float) -> str:
        """Until it is over; its phase. Raises what went wrong in the kubelet itself."""
        self.task.result(timeout_s)
        return self.phase


class Kubelet:
    """Runs pods until it ends, and kills what is left then.

    Times between probes and restarts are divided by ``pace``."""

    def __init__(
        self,
        folder: Path,
        namespace: Namespace,
        *,
        images: Mapping[str, Image],
        pace: float = 1.0,
        node: str = "process-node",
    ) -> None:
        self.journal = Journal()
        self.pods: list[RunningPod] = []
        self.namespace = namespace
        self._folder = folder
        self._pace = pace
        self._images = images
        self._node = node
        self._machine = LocalMachine()
        # A network of its own, so that two kubelets at once do not meet.
        self._network = f"127.{random.randint(1, 254)}.{random.randint(0, 255)}"
        self._addresses = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kubelet", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            print("\n".join(pod.describe() for pod in self.pods))
        self.kill()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def run(self, manifest: Mapping[str, Any]) -> RunningPod:
        """Start a pod. Raises Refused, and Unresolved where a volume's source is not there."""
        number = next(self._addresses)
        assert number <= MAX_PODS, f"more than {MAX_PODS} pods"
        name, spec = manifest["metadata"]["name"], manifest["spec"]
        fields.check(name, spec)
        folder = self._folder / f"{number}-{name}"
        folder.mkdir(parents=True)
        address = f"{self._network}.{number}"
        sandbox = Sandbox(
            name=name,
            folder=folder,
            grace_s=spec.get("terminationGracePeriodSeconds", GRACE_S),
            pace=self._pace,
            places=Places(folder, self._folder / "claims", address, spec, self.namespace),
            facts=facts_of(manifest, address=address, node=self._node),
            namespace=self.namespace,
            images=self._images,
            journal=self.journal,
            machine=self._machine,
        )
        pod = RunningPod(self, Pod(manifest, sandbox))
        self.pods.append(pod)
        return pod

    def kill(self) -> None:
        """SIGKILL to all that runs, at once."""
        self.submit(self._end()).result(PATIENCE_S)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _end(self) -> None:
        """Cancelled tasks kill their processes; one that is in the middle of an end may have to be
        cancelled again."""
        here = asyncio.current_task()
        while tasks := asyncio.all_tasks() - {here}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=AGAIN_S)
