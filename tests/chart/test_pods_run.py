"""The chart's pods, run: its own commands, variables and probes on a real Redis, a real PostgreSQL and a simulated provider.

What makes processes of pods is kubelet/. Secrets name the servers of here in place of the cluster's; a vLLM image is played
by `penstock simulate`. Nothing else of the manifests is changed but by values.
"""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from chart.conftest import Render
from chart.helm_library import Release, Values
from chart.kubelet.journal import Did
from chart.kubelet.kubelet import Kubelet, RunningPod
from chart.kubelet.namespace import Namespace
from chart.kubelet.workloads import one_pod
from chart.pods import container, pod_spec, pool
from fleet import Fleet, Provider, until
from servers import Postgres

from penstock_ledger.model import JobState

PACE = 20.0  # probes ask so many times as often as the chart says; nothing else is faster
KEY = "sk-of-the-secret"
DOCUMENTS = 60
SLOTS = 8
UP_S = 60.0
LONG_MS = 60_000  # longer than any drain here

# Of both pools: a start has as many seconds as the chart's two minutes have, at that pace and on a busy machine.
PATIENT: Values = {"startupSeconds": 1800, "concurrency": SLOTS}
SHORT: Values = {"terminationGracePeriodSeconds": 8, "drainSeconds": 1}
SHORTEST: Values = {"terminationGracePeriodSeconds": 2, "drainSeconds": 1}


class Cluster:
    """A release whose Secrets name servers of this machine, and a kubelet for its pods."""

    def __init__(self, release: Release, fleet: Fleet, folder: Path, **urls: str) -> None:
        self.release = release
        namespace = Namespace.of(release.manifests)
        found = {"redis": fleet.redis.url, "database": fleet.database_url} | urls
        for name in ("fleet-penstock-redis", "penstock-broker"):
            namespace.put("Secret", name, url=found["redis"])
        for name in ("fleet-penstock-postgres", "penstock-database"):
            namespace.put("Secret", name, url=found["database"])
        namespace.put("Secret", "provider-keys", openai=KEY)
        namespace.put("Secret", "huggingface", token="hf_x")
        self.kubelet = Kubelet(folder, namespace, pace=PACE)

    def pod(self, name: str) -> RunningPod:
        """A pod of a worker pool."""
        return self.kubelet.run(one_pod(pool(self.release, name)))


def values(fleet: Fleet, **pools: Values) -> Values:
    """Over an example: the simulated provider, quick reconciliation, and pools of few slots."""
    chosen = {name: PATIENT | more for name, more in pools.items()}
    provider = {"base_url": fleet.provider.url, "adaptive": False}
    settings = {"reconcile_interval_s": 1, "visibility_timeout_s": 600}
    return {"providers": {"default": provider}, "settings": settings, "workerPools": chosen}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, _shared_postgres: Postgres) -> Iterator[Fleet]:
    """What is outside the cluster: Redis, a migrated database, the provider, and who submits jobs."""
    with Fleet(tmp_path_factory.mktemp("pods"), database_url=_shared_postgres.new_database()) as fleet:
        fleet.provider.start("--latency-ms", "5", "--latency-sigma", "0", "--api-key", KEY)
        yield fleet


@pytest.fixture(scope="module")
def cluster(fleet: Fleet, render: Render) -> Iterator[Cluster]:
    """examples/minimal.yaml with a pool more, and its control pod ready."""
    pools = {"api": SHORT, "frail": SHORTEST | {"kind": "api"}, "control": SHORT}
    cluster = Cluster(render("minimal", values(fleet, **pools)), fleet, fleet.folder / "kubelet")
    with cluster.kubelet:
        ready(cluster.pod("control"))
        yield cluster


def ready(*pods: RunningPod) -> None:
    def all_are() -> bool:
        over = [pod.describe() for pod in pods if pod.task.done()]
        assert not over, "\n".join(over)
        return all(pod.is_ready for pod in pods)

    try:
        until(all_are, UP_S, "their own probes say that they are ready")
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *(pod.describe() for pod in pods)])) from None


def test_pods_finish_a_job_and_give_back_what_they_hold(cluster: Cluster, fleet: Fleet) -> None:
    """A worker's pod migrates, starts, is ready by its own probe and finishes a job with the Secret's key.

    Deleted with calls in flight, it ends with 0 within its own grace period, and all that it held is in the queue.
    """
    pod = cluster.pod("api")
    ready(pod)
    started = [event.container for event in cluster.kubelet.journal.of(pod.name, Did.START)]
    assert (started, pod.exit_code("migrate")) == (["migrate", "penstock"], 0)
    with urllib.request.urlopen(f"http://{pod.address}:9464/metrics", timeout=5) as page:
        assert b"penstock_" in page.read()
    job = fleet.submit(DOCUMENTS, key="first")
    fleet.wait_for(job, JobState.COMPLETED, 60)
    assert fleet.account(job, DOCUMENTS).dead == {}

    fleet.provider.tell(latency_ms=LONG_MS)
    try:
        job = fleet.submit(DOCUMENTS, key="second")
        until(lambda: fleet.provider.in_flight() == SLOTS, 30, "all slots are in flight")
        until(lambda: fleet.depths(job)["queued"] + fleet.depths(job)["unacked"] == DOCUMENTS, 30, "all is fed")
        began = time.monotonic()
        pod.delete()
        took_s = time.monotonic() - began
    finally:
        fleet.provider.tell(latency_ms=5)
    assert (pod.exit_code("penstock"), took_s < pod.grace_s == 8) == (0, True), pod.describe()
    assert not cluster.kubelet.journal.of(pod.name, Did.KILL)
    depths = fleet.depths(job)
    assert (depths["queued"], depths["unacked"]) == (DOCUMENTS, 0)

    other = cluster.pod("api")
    fleet.wait_for(job, JobState.COMPLETED, 60)
    assert fleet.account(job, DOCUMENTS).extra_calls == SLOTS
    other.delete()


def age_of(alive: Path) -> float:
    return time.time() - alive.stat().st_mtime


def test_a_worker_that_stands_still_is_restarted_and_nobody_else(cluster: Cluster, fleet: Fleet) -> None:
    """The chart's liveness probe ends a worker whose hub is stopped; an outage of Redis at the same time ends no other.

    The chart waits until `alive` is 90 s old. The file is made as old, or nearly: a process that does not touch it again is
    found out, and one that does is not.
    """
    frail, well = cluster.pod("frail"), cluster.pod("api")
    ready(frail, well)
    longest_s = float(container(pool(cluster.release, "api"), "penstock")["livenessProbe"]["exec"]["command"][-1])
    try:
        fleet.redis.kill()
        began, stopped = time.monotonic(), frail.container("penstock").pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        for pod, left_s in ((frail, -1.0), (well, 8.0)):
            then = time.time() - longest_s + left_s
            os.utime(pod.volume("run") / "alive", (then, then))
        until(lambda: frail.container("penstock").restarts == 1, 30, frail.describe())
        until(lambda: age_of(well.volume("run") / "alive") < longest_s / 2, 30, "the other one turns without Redis")
        until(lambda: len(cluster.kubelet.journal.of(well.name, Did.ALIVE, since=began)) >= 3, 30, "it was asked")
    finally:
        fleet.redis.restart()
    assert frail.container("penstock").last_state["terminated"]["exitCode"] == 128 + signal.SIGKILL
    ready(frail, well)
    for pod in cluster.kubelet.pods:
        if pod is not frail and pod.phase == "Running":
            assert pod.container("penstock").restarts == 0, pod.describe()
    job = fleet.submit(DOCUMENTS, key="after")
    fleet.wait_for(job, JobState.COMPLETED, 60)
    frail.delete()
    well.delete()


def test_hooks_do_what_they_are_for(fleet: Fleet, render: Render, postgres_url: str, tmp_path: Path) -> None:
    """`helm test` fails on a database without tables, and succeeds once the hook of an install has migrated it."""
    release = render("gke", values(fleet))
    cluster = Cluster(release, fleet, tmp_path / "kubelet", database=postgres_url)
    with cluster.kubelet as kubelet:
        check = release.one("Pod")
        before = kubelet.run(check)
        assert before.wait(60) == "Failed"
        assert "penstock migrate" in before.log("doctor"), before.describe()
        assert kubelet.run(one_pod(release.one("Job"))).wait(60) == "Succeeded"
        after = kubelet.run(check)
        assert after.wait(60) == "Succeeded", after.describe()


def test_a_sidecar_is_there_before_the_worker_and_after_it(
    cluster: Cluster, fleet: Fleet, render: Render, tmp_path: Path
) -> None:
    """The worker starts once the sidecar's model is loaded; deleted, its answers still come, and then the sidecar ends."""
    pools = {"gpu": PATIENT | {"model": {"name": "sim-small", "servedNames": ["sim"]}}}
    gpu = Cluster(render("gpu-sidecar", values(fleet) | {"workerPools": pools}), fleet, tmp_path / "kubelet")
    with gpu.kubelet as kubelet:
        pod = gpu.pod("gpu")
        ready(pod)
        assert kubelet.journal.order(pod.name, Did.START, Did.UP) == [
            ("vllm", Did.START), ("vllm", Did.UP), ("penstock", Did.START), ("penstock", Did.UP),
        ]  # fmt: skip
        vllm = Provider(tmp_path, port=8000, host=pod.address)
        vllm.tell(latency_ms=1500, latency_sigma=0)
        job = fleet.submit(SLOTS, key="gpu", lane="gpu", model=None, prompt="Name a topic: {text}")
        until(lambda: vllm.in_flight() == SLOTS, 30, f"all are in flight\n{pod.describe()}")
        pod.delete()
        assert kubelet.journal.order(pod.name, Did.TERM, Did.KILL, Did.EXIT)[-4:] == [
            ("penstock", Did.TERM), ("penstock", Did.EXIT), ("vllm", Did.TERM), ("vllm", Did.EXIT),
        ]  # fmt: skip
    assert pod.exit_code("penstock") == 0
    fleet.wait_for(job, JobState.COMPLETED, 30)
    assert fleet.account(job, SLOTS).results == {f"doc-{n}" for n in range(SLOTS)}


@pytest.mark.soak
def test_the_shortest_notice_of_all_is_long_enough(fleet: Fleet, render: Render, tmp_path: Path) -> None:
    """On GKE a pod has 15 s and drains for 10 of them: at the chart's own pace, with calls in flight, it ends with 0."""
    chosen = values(fleet, api={}) | {"spot": {"provider": "gke"}}
    gke = Cluster(render("minimal", chosen), fleet, tmp_path / "kubelet")
    gke.kubelet = Kubelet(tmp_path / "own-pace", gke.kubelet.namespace)
    with ExitStack() as stack:
        stack.enter_context(gke.kubelet)
        stack.callback(fleet.provider.tell, latency_ms=5)
        pod, control = gke.pod("api"), gke.pod("control")
        assert pod.grace_s == pod_spec(pool(gke.release, "api"))["terminationGracePeriodSeconds"] == 15
        ready(pod, control)
        fleet.provider.tell(latency_ms=LONG_MS)
        job = fleet.submit(DOCUMENTS, key="gke")
        until(lambda: fleet.provider.in_flight() == SLOTS, 30, "all slots are in flight")
        until(lambda: fleet.depths(job)["queued"] + fleet.depths(job)["unacked"] == DOCUMENTS, 30, "all is fed")
        pod.delete()
        assert (pod.exit_code("penstock"), fleet.depths(job)["queued"]) == (0, DOCUMENTS)
