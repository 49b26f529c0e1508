"""The chart in a real cluster, its pods as processes here: what the API server, the controllers and
the scheduler add.

`KUBECONFIG=… pytest tests/chart/test_with_cluster.py`, for a cluster that a test may use (kind,
k3d). It makes a namespace and a node, and removes both. Redis and the provider are processes of
this machine, and so are the pods: nothing is pulled.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from chart.conftest import Render
from chart.helm_library import NAMESPACE, Manifest, Release, Values
from chart.images import IMAGES
from fleet import Fleet, until
from kubelet import MARK, Api, ApiError, Kubelet, Namespace, Node

from penstock_ledger.model import JobState

KUBECONFIG = os.environ.get("KUBECONFIG", "")
SLOTS = 8
DOCUMENTS = 60
UP_S = 120.0
LONG_MS = 60_000
TOO_EARLY = 429

pytestmark = pytest.mark.skipif(
    not KUBECONFIG, reason="no cluster: set KUBECONFIG to one that tests may use (kind, k3d)"
)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as fleet:
        fleet.provider.start("--latency-ms", "5", "--latency-sigma", "0")
        yield fleet


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """A namespace of its own; one that is there already may be a fleet at work: the test then
    fails, and leaves it as it is."""
    api = Api.of(Path(KUBECONFIG), tmp_path)
    api.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    yield api
    api.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}")


@pytest.fixture
def node(api: Api, tmp_path: Path) -> Iterator[Node]:
    with (
        Kubelet(tmp_path / "kubelet", Namespace(), images=IMAGES) as kubelet,
        Node(api, kubelet, NAMESPACE, f"p{os.getpid()}") as node,
    ):
        yield node


def installed(api: Api, release: Release) -> None:
    """Everything but hooks, which would want an image, in Helm's order as far as it matters."""
    for manifest in sorted(release.manifests, key=lambda one: one["kind"] == "Deployment"):
        if "helm.sh/hook" not in manifest["metadata"].get("annotations", {}):
            api.apply(manifest)


def secret(name: str, **texts: str) -> Manifest:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": texts}


def values(fleet: Fleet, node: Node) -> Values:
    here: Values = {
        "nodeSelector": {MARK: node.name},
        "tolerations": [{"key": MARK, "operator": "Exists"}],
    }
    grace: Values = {"terminationGracePeriodSeconds": 15, "drainSeconds": 1}
    return {
        "spot": {"provider": ""},
        "providers": {"default": {"base_url": fleet.provider.url, "adaptive": False}},
        "settings": {"reconcile_interval_s": 1, "visibility_timeout_s": 600},
        "workerPools": {
            "api": here | grace | {"replicas": 1, "concurrency": SLOTS},
            "control": here | {"replicas": 1},
        },
    }


def evict(api: Api, pod: str) -> bool:
    """False while the budget says no, as it does until its controller has counted."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
    metadata = {"name": pod, "namespace": NAMESPACE}
    try:
        api.call(
            "POST", path, {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        )
    except ApiError as error:
        if error.status != TOO_EARLY:
            raise
        return False
    return True


def test_an_eviction_loses_nothing(api: Api, node: Node, fleet: Fleet, render: Render) -> None:
    """Deployments' pods finish a job; one that is evicted with calls in flight gives them back, and
    its successor goes on.

    Without KUBECONFIG this skips even where CI=true: no package carries an API server, so a machine
    that lacks one is no fault of its setup, as a missing redis-server would be. What pods do by
    themselves is in test_pods_run.py, and runs everywhere.
    """
    api.apply(secret("penstock-broker", url=fleet.redis.url))
    api.apply(secret("penstock-database", url=fleet.database_url))
    api.apply(secret("provider-keys", openai="sk"))
    installed(api, render("gke", values(fleet, node)))
    until(
        lambda: sum(pod.is_ready for pod in node.running.values()) == 2,
        UP_S,
        f"two pods are ready: {node.trouble}",
    )
    job = fleet.submit(DOCUMENTS, key="first")
    fleet.wait_for(job, JobState.COMPLETED, UP_S)

    fleet.provider.tell(latency_ms=LONG_MS)
    job = fleet.submit(DOCUMENTS, key="second")
    until(lambda: fleet.provider.in_flight() == SLOTS, UP_S, "all slots are in flight")
    (evicted,) = (pod for pod in node.running.values() if "-api-" in pod.name)
    until(lambda: evict(api, evicted.name), UP_S, "the disruption budget allows it")
    until(evicted.task.done, UP_S, "the pod has ended")
    fleet.provider.tell(latency_ms=5)
    assert evicted.exit_code("penstock") == 0
    fleet.wait_for(job, JobState.COMPLETED, UP_S)
    assert fleet.account(job, DOCUMENTS).dead == {}
    with pytest.raises(ApiError, match="404"):
        api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods/{evicted.name}")
