"""A node of a real cluster whose pods are processes here: it registers, beats its heart, runs what
is bound to it, and reports.

It asks the API server every half second and watches nothing: a test has a handful of pods.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from kubelet.api import GONE, MERGE, Api, ApiError, Object
from kubelet.kubelet import GRACE_S, PATIENCE_S, Kubelet, RunningPod
from kubelet.services import in_cluster

MARK = "penstock/process-kubelet"  # label and taint: only pods that ask for it come here
POLL_S = 0.5
BEAT_S = 10.0  # a node that is silent for 40 s loses its pods
CONFLICT = 409
ROOM = {
    "cpu": "64",
    "memory": "256Gi",
    "ephemeral-storage": "1Ti",
    "pods": "100",
    "nvidia.com/gpu": "8",
}


class Node:
    """Lasts as long as its context. ``trouble`` is what stopped it, if something did.

    Pods that ask for the label MARK with the value ``group`` come here, and no others.
    """

    def __init__(
        self,
        api: Api,
        kubelet: Kubelet,
        namespace: str,
        name: str,
        *,
        group: str,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Object] = (),
    ) -> None:
        self.name = name
        self.trouble: Exception | None = None
        self.running: dict[str, RunningPod] = {}  # by uid
        self._labels = {
            MARK: group,
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            **(labels or {}),
        }
        self._taints = [{"key": MARK, "value": group, "effect": "NoSchedule"}, *taints]
        self._api = api
        self._kubelet = kubelet
        self._namespace = namespace
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._told: dict[str, Object] = {}
        self._beaten_at = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": self._labels},
            "spec": {"taints": self._taints},
        }
        self._api.call("POST", "/api/v1/nodes", node)
        self._beat()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()
        self.remove()
        if error is None and self.trouble is not None:
            raise self.trouble

    def vanish(self) -> None:
        """The machine is gone: its processes are killed, and the cluster hears nothing of it."""
        self._stop()
        self._kubelet.kill()

    def remove(self) -> None:
        """Take it out of the cluster, as a cloud does with a machine that is gone."""
        try:
            self._api.call("DELETE", f"/api/v1/nodes/{self.name}")
        except ApiError as error:
            if error.status != GONE:
                raise

    def taint(self, key: str, effect: str) -> None:
        taints = [*self._taints, {"key": key, "value": "true", "effect": effect}]
        self._api.call("PATCH", f"/api/v1/nodes/{self.name}", {"spec": {"taints": taints}}, MERGE)

    def _stop(self) -> None:
        self._end.set()
        self._thread.join(PATIENCE_S)

    def pods(self) -> dict[str, Object]:
        """Bound to this node, by uid."""
        found = self._api.call("GET", f"{self._pods}?fieldSelector=spec.nodeName%3D{self.name}")
        return {pod["metadata"]["uid"]: pod for pod in found["items"]}

    def _run(self) -> None:
        try:
            while not self._end.wait(POLL_S):
                if time.monotonic() - self._beaten_at > BEAT_S:
                    self._beat()
                for uid, pod in self.pods().items():
                    self._tend(uid, pod)
        except Exception as error:
            self.trouble = error

    def _tend(self, uid: str, pod: Object) -> None:
        metadata = pod["metadata"]
        if uid not in self.running:
            self._learn()
            self.running[uid] = self._kubelet.run(pod)
        running = self.running[uid]
        is_leaving = "deletionTimestamp" in metadata
        if is_leaving and not running.is_deleted:
            running.start_deleting(metadata.get("deletionGracePeriodSeconds", GRACE_S))
        try:
            status = running.status | {"podIP": in_cluster(running.address)}
            self._tell(uid, f"{self._pods}/{metadata['name']}/status", {"status": status})
            if is_leaving and running.task.done():
                gone = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
                self._api.call("DELETE", f"{self._pods}/{metadata['name']}", gone)
        except ApiError as error:
            if error.status not in (GONE, CONFLICT):
                raise

    def _learn(self) -> None:
        """What pods refer to, as it is now."""
        for kind, path in (("Secret", "secrets"), ("ConfigMap", "configmaps")):
            found = self._api.call("GET", f"/api/v1/namespaces/{self._namespace}/{path}")
            self._kubelet.namespace.learn(one | {"kind": kind} for one in found["items"])

    def _tell(self, what: str, path: str, patch: Object) -> None:
        """Once per change."""
        if self._told.get(what) != patch:
            self._api.call("PATCH", path, patch, MERGE)
            self._told[what] = patch

    def _beat(self) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready: dict[str, Any] = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "pods are processes",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        status = {"capacity": ROOM, "allocatable": ROOM, "conditions": [ready], "nodeInfo": {}}
        self._api.call("PATCH", f"/api/v1/nodes/{self.name}/status", {"status": status}, MERGE)
        self._beaten_at = time.monotonic()
