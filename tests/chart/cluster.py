"""A fleet in a real cluster that KUBECONFIG names, by Helm, its pods as processes of this machine.

It has a namespace and three nodes of its own, two of which are spot nodes as GKE has them, and
removes them at the end; only its pods come to its nodes. Redis, PostgreSQL, the bucket and the
provider are processes of this machine, too: nothing is pulled.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from chart.conftest import CHART, example, overlay
from chart.helm_library import RELEASE, Helm, Manifest, Values
from chart.images import IMAGES
from fleet import Fleet, NotInTime, until
from kubelet import MARK, Api, ApiError, Kubelet, Namespace, Node, RunningPod
from servers import Postgres, S3Server

KUBECONFIG = os.environ.get("KUBECONFIG", "")
SLOTS = 8
UP_S = 180.0
BUCKET = "corpora"
ZONE = "topology.kubernetes.io/zone"
SPOT = "cloud.google.com/gke-spot"
RESTRICTED = {
    f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")
}
TOO_EARLY = 429


@dataclass
class Cluster:
    """One namespace of the cluster, and what runs in it."""

    api: Api
    namespace: str
    helm: Helm
    fleet: Fleet
    s3: S3Server
    nodes: Mapping[str, Node]

    # -- what Helm is given ------------------------------------------------------------------------

    @property
    def place(self) -> Values:
        """Of pods that may come to the nodes of here, and to no others."""
        return {
            "nodeSelector": {MARK: self.namespace},
            "tolerations": [{"key": MARK, "operator": "Exists"}],
        }

    def values(self, changes: Values | None = None, name: str = "gke") -> Values:
        """An example with the servers of here, and two pods of the pool `api`."""
        here: Values = {
            "checkClusterApis": True,
            "poolDefaults": self.place | {"envFrom": [{"secretRef": {"name": "bucket"}}]},
            "gateway": self.place,
            "broker": {"passwordKey": ""},
            "providers": {"default": {"base_url": self.fleet.provider.url, "adaptive": False}},
            "settings": {
                "results_url": f"s3://{BUCKET}/out",
                "reconcile_interval_s": 1,
                "visibility_timeout_s": 600,
            },
            "workerPools": {
                "api": {"replicas": 2, "concurrency": SLOTS},
                "control": {"replicas": 1, "terminationGracePeriodSeconds": 15},
            },
        }
        return overlay(overlay(example(name), here), changes or {})

    # -- what the cluster has ----------------------------------------------------------------------

    def path(self, group: str, kind: str, name: str = "") -> str:
        return f"/{group}/namespaces/{self.namespace}/{kind}" + f"/{name}" * bool(name)

    def deployment(self, pool: str) -> Manifest:
        return self.api.call(
            "GET", self.path("apis/apps/v1", "deployments", f"{RELEASE}-penstock-{pool}")
        )

    def replicas(self, pool: str) -> int:
        """How many pods are asked for."""
        asked: int = self.deployment(pool)["spec"]["replicas"]
        return asked

    def ready(self, pool: str) -> int:
        """How many pods are ready, as the cluster has heard."""
        count: int = self.deployment(pool)["status"].get("readyReplicas", 0)
        return count

    def running(self, pool: str, node: str | None = None) -> list[RunningPod]:
        """Pods of a pool that have not ended, of one node or of all."""
        return [
            pod
            for name, there in self.nodes.items()
            if node in (None, name)
            for pod in there.running.values()
            if f"-{pool}-" in pod.name and not pod.task.done()
        ]

    def wait_until_ready(self, **pools: int) -> None:
        """Until so many pods of each pool are ready, and no others are left of it."""
        for pool, count in pools.items():
            try:
                until(partial(self._is_up, pool, count), UP_S, f"{count} pods of {pool} are ready")
            except NotInTime as error:
                raise NotInTime(f"{error}; nodes: {self._troubles()}") from None

    def _is_up(self, pool: str, count: int) -> bool:
        return self.ready(pool) == count == len(self.running(pool))

    def _troubles(self) -> list[str]:
        return [repr(node.trouble) for node in self.nodes.values() if node.trouble is not None]

    def evict(self, pod: RunningPod) -> bool:
        """False while the budget says no, as it does until its controller has counted."""
        metadata = {"name": pod.name, "namespace": self.namespace}
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        try:
            self.api.call("POST", self.path("api/v1", "pods", f"{pod.name}/eviction"), eviction)
        except ApiError as error:
            if error.status != TOO_EARLY:
                raise
            return False
        return True

    def secret(self, name: str, **texts: str) -> None:
        metadata = {"name": name, "namespace": self.namespace}
        self.api.apply(
            {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": texts}
        )


@contextmanager
def namespace(api: Api, name: str) -> Iterator[None]:
    """A namespace that admits what Pod Security calls restricted."""
    api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": RESTRICTED}})
    try:
        yield
    finally:
        api.call("DELETE", f"/api/v1/namespaces/{name}")


@contextmanager
def cluster(name: str, folder: Path, postgres: Postgres, s3: S3Server) -> Iterator[Cluster]:
    """Everything but the release itself."""
    bucket = {
        "AWS_ENDPOINT_URL": s3.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }
    s3.client().create_bucket(Bucket=BUCKET)
    database = postgres.new_database()
    with ExitStack() as stack:
        fleet = stack.enter_context(
            Fleet(folder / "fleet", database_url=database, variables=bucket)
        )
        fleet.provider.start("--latency-ms", "5", "--latency-sigma", "0")
        api = Api.of(Path(KUBECONFIG), folder)
        stack.enter_context(namespace(api, name))
        # Not below pytest's folder, which no other user may enter: under root, PostgreSQL is one.
        there = Path(stack.enter_context(TemporaryDirectory(prefix="penstock-nodes-")))
        there.chmod(0o755)
        nodes = {}
        for role in ("steady", "spot-1", "spot-2"):
            spot = {"key": SPOT, "value": "true", "effect": "NoSchedule"}
            is_spot = role != "steady"
            kubelet = stack.enter_context(
                Kubelet(there / role, Namespace(), images=IMAGES, node=f"{name}-{role}")
            )
            nodes[role] = stack.enter_context(
                Node(
                    api,
                    kubelet,
                    name,
                    f"{name}-{role}",
                    group=name,
                    labels={ZONE: "a"} | ({SPOT: "true"} if is_spot else {}),
                    taints=[spot] if is_spot else [],
                )
            )
        found = Cluster(api, name, Helm(Path(KUBECONFIG), name, CHART), fleet, s3, nodes)
        found.secret(
            "penstock-broker", url=fleet.redis.url, address=f"127.0.0.1:{fleet.redis.port}"
        )
        found.secret("penstock-database", url=database)
        found.secret("provider-keys", openai="sk")
        found.secret("bucket", **bucket)
        yield found
