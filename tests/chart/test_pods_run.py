"""The chart's pods, run: its own commands, variables and probes on a real Redis, a real PostgreSQL
and a simulated provider.

What makes processes of pods is tests/kubelet. Secrets name the servers of here in place of the
cluster's; a vLLM image is played by `penstock simulate`. Nothing else of the manifests is changed
but by values.
"""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
from chart.conftest import Render, overlay
from chart.helm_library import Release, Values
from chart.images import IMAGES
from chart.pods import container, pod_spec, pool
from fleet import Fleet, Provider, until
from kubelet import Did, Kubelet, Namespace, RunningPod, one_pod
from redis import Redis
from servers import Postgres

from penstock_ledger.model import Job, JobState

PACE = 20.0  # probes ask so many times as often as the chart says; nothing else is faster
KEY = "sk-of-the-secret"
DOCUMENTS = 60
SLOTS = 8
UP_S = 60.0
LONG_MS = 60_000  # longer than any drain here

# Of all pools: at this pace, a start may take as long as the chart has it, and more on a busy
# machine.
PATIENT: Values = {"startupSeconds": 1800, "concurrency": SLOTS}
SHORT: Values = {"terminationGracePeriodSeconds": 8, "drainSeconds": 1}
SHORTEST: Values = {"terminationGracePeriodSeconds": 2, "drainSeconds": 1}


class Cluster:
    """A release whose Secrets name servers of this machine, and a kubelet for its pods."""

    def __init__(
        self,
        release: Release,
        fleet: Fleet,
        folder: Path,
        *,
        database: str | None = None,
        pace: float = PACE,
    ) -> None:
        self.release = release
        namespace = Namespace.of(release.manifests)
        namespace.put("Secret", "penstock-broker", url=fleet.redis.url)
        namespace.put("Secret", "penstock-database", url=database or fleet.database_url)
        namespace.put("Secret", "provider-keys", openai=KEY, anthropic="another")
        namespace.put("Secret", "huggingface", token="hf_x")
        self.kubelet = Kubelet(folder, namespace, images=IMAGES, pace=pace)
        self._pods: dict[str, RunningPod] = {}

    def start(self, *names: str) -> None:
        """A pod of each of these worker pools; `up` waits for it."""
        self._pods |= {name: self.kubelet.run(one_pod(pool(self.release, name))) for name in names}

    def up(self, *names: str) -> list[RunningPod]:
        """Ready pods of these pools: those that run already, or new ones."""
        self.start(*(name for name in names if name not in self._pods))
        pods = [self._pods[name] for name in names]
        try:
            until(
                partial(_are_up, pods),
                UP_S,
                "their own probes say that they are ready",
            )
        except AssertionError as error:
            raise AssertionError(
                "\n".join([str(error), *(pod.describe() for pod in pods)])
            ) from None
        return pods

    def down(self, name: str) -> None:
        if name in self._pods:
            self._pods.pop(name).delete()


def _are_up(pods: Sequence[RunningPod]) -> bool:
    for pod in pods:
        assert not pod.task.done(), f"{pod.name} is over"
    return all(pod.is_ready for pod in pods)


def values(fleet: Fleet, **pools: Values) -> Values:
    """Over an example: the simulated provider, a folder for outputs, quick reconciliation, and
    pools of few slots."""
    provider = {"base_url": fleet.provider.url, "rpm": 1_000_000, "tpm": 1_000_000_000}
    settings = {
        "results_url": str(results(fleet)),
        "reconcile_interval_s": 1,
        "visibility_timeout_s": 600,
    }
    chosen = {name: PATIENT | more for name, more in pools.items()}
    return {"providers": {"default": provider}, "settings": settings, "workerPools": chosen}


def results(fleet: Fleet) -> Path:
    return fleet.folder / "results"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, postgres_server: Postgres) -> Iterator[Fleet]:
    """What is outside the cluster: Redis, a migrated database, the provider, and who submits
    jobs."""
    with Fleet(
        tmp_path_factory.mktemp("pods"), database_url=postgres_server.new_database()
    ) as fleet:
        fleet.provider.start("--latency-ms", "5", "--latency-sigma", "0", "--api-key", KEY)
        yield fleet


@pytest.fixture(scope="module")
def cluster(fleet: Fleet, render: Render) -> Iterator[Cluster]:
    """examples/external-redis.yaml; all pods start at once, as they would."""
    pools = {"api": SHORT, "control": SHORTEST}
    cluster = Cluster(
        render("external-redis", values(fleet, **pools)), fleet, fleet.folder / "kubelet"
    )
    with cluster.kubelet:
        cluster.start(*pools)
        cluster.up("control")
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def gpu(fleet: Fleet, render: Render) -> Iterator[Cluster]:
    """examples/gpu-sidecar.yaml; its pod starts while the others do."""
    pools = {"gpu": PATIENT | {"model": {"name": "sim-small", "servedNames": ["sim"]}}}
    gpu = Cluster(
        render("gpu-sidecar", values(fleet) | {"workerPools": pools}), fleet, fleet.folder / "gpu"
    )
    with gpu.kubelet:
        gpu.start("gpu")
        yield gpu


def test_pods_finish_a_job(cluster: Cluster, fleet: Fleet) -> None:
    """Ready by their own probes, with the Secret's key, they write its output; metrics are on the
    port that they name."""
    (api,) = cluster.up("api")
    job = fleet.submit(DOCUMENTS, key="first")
    fleet.wait_for(job, JobState.COMPLETED, 60)
    account = fleet.account(job, DOCUMENTS)
    assert (account.dead, account.extra_calls) == ({}, 0)
    (output,) = results(fleet).glob("*/output.jsonl")
    assert len(output.read_text().splitlines()) == DOCUMENTS
    with urllib.request.urlopen(f"http://{api.address}:9464/metrics", timeout=5) as page:
        assert b"penstock_" in page.read()


def test_a_sidecar_is_there_before_the_worker_and_after_it(
    cluster: Cluster, gpu: Cluster, fleet: Fleet
) -> None:
    """The worker starts once the sidecar's model is loaded; deleted, its answers still come, and
    then the sidecar ends."""
    journal = gpu.kubelet.journal
    cluster.up("control")  # which feeds
    (pod,) = gpu.up("gpu")
    assert journal.order(pod.name, Did.START, Did.UP) == [
        ("vllm", Did.START),
        ("vllm", Did.UP),
        ("penstock", Did.START),
        ("penstock", Did.UP),
    ]
    vllm = Provider(fleet.folder, port=8000, host=pod.address)
    vllm.tell(latency_ms=1000, latency_sigma=0)
    job = fleet.submit(SLOTS, key="gpu", lane="gpu", model=None, prompt="Name a topic: {text}")
    until(lambda: vllm.in_flight() == SLOTS, 30, "all are in flight")
    gpu.down("gpu")
    assert journal.order(pod.name, Did.TERM, Did.KILL, Did.EXIT)[-4:] == [
        ("penstock", Did.TERM),
        ("penstock", Did.EXIT),
        ("vllm", Did.TERM),
        ("vllm", Did.EXIT),
    ]
    assert pod.exit_code("penstock") == 0
    fleet.wait_for(job, JobState.COMPLETED, 30)
    assert fleet.account(job, SLOTS).results == {f"doc-{n}" for n in range(SLOTS)}


def age_of(alive: Path) -> float:
    return time.time() - alive.stat().st_mtime


def test_a_worker_that_stands_still_is_restarted_and_no_other(
    cluster: Cluster, fleet: Fleet
) -> None:
    """The chart's liveness probe ends a process whose hub is stopped; an outage of Redis at the
    same time ends no other.

    The chart waits until `alive` is 90 s old. The file is made as old, or nearly: a process that
    does not touch it again is found out, and one that does is not. Here it is the control pod's
    that stops: a worker like all others, with their probes.
    """
    stopped, well = cluster.up("control", "api")
    alive = well.volume("run") / "alive"
    longest_s = float(
        container(pool(cluster.release, "api"), "penstock")["livenessProbe"]["exec"]["command"][-1]
    )
    try:
        fleet.redis.kill()
        began, pid = time.monotonic(), stopped.container("penstock").pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        for path, left_s in ((stopped.volume("run") / "alive", -1.0), (alive, 8.0)):
            then = time.time() - longest_s + left_s
            os.utime(path, (then, then))
        until(
            lambda: stopped.container("penstock").restarts == 1, 30, "the stopped one is restarted"
        )
        until(lambda: age_of(alive) < longest_s / 2, 30, "the other one turns without Redis")
        until(
            lambda: len(cluster.kubelet.journal.of(well.name, Did.ALIVE, since=began)) >= 3,
            30,
            "it was asked",
        )
    finally:
        fleet.redis.restart()
    assert (
        stopped.container("penstock").last_state["terminated"]["exitCode"] == 128 + signal.SIGKILL
    )
    cluster.up("control", "api")
    assert [pod.container("penstock").restarts for pod in (stopped, well)] == [1, 0]


def fill(fleet: Fleet, key: str) -> Job:
    """A job whose calls take longer than any drain; all slots of one worker are in flight."""
    fleet.provider.tell(latency_ms=LONG_MS)
    job = fleet.submit(DOCUMENTS, key=key)
    until(lambda: fleet.provider.in_flight() == SLOTS, 30, "all slots are in flight")
    until(
        lambda: fleet.depths(job)["queued"] + fleet.depths(job)["unacked"] == DOCUMENTS,
        30,
        "all is fed",
    )
    return job


def test_a_pod_that_is_deleted_gives_back_what_it_holds(cluster: Cluster, fleet: Fleet) -> None:
    """With calls in flight it ends with 0 within its own grace period, and everything is in the
    queue when it has."""
    (api,) = cluster.up("api")
    job = fill(fleet, "second")
    began = time.monotonic()
    cluster.down("api")
    took_s = time.monotonic() - began
    fleet.provider.tell(latency_ms=5)
    assert (api.exit_code("penstock"), took_s < api.grace_s) == (0, True), api.describe()
    assert api.grace_s == pod_spec(pool(cluster.release, "api"))["terminationGracePeriodSeconds"]
    assert not cluster.kubelet.journal.of(api.name, Did.KILL)
    assert (fleet.depths(job)["queued"], fleet.depths(job)["unacked"]) == (DOCUMENTS, 0)


def test_hooks_do_what_they_are_for(
    fleet: Fleet, render: Render, postgres_url: str, tmp_path: Path
) -> None:
    """The hook of an install makes the tables of an empty database, and `helm test` finds them,
    Redis and the provider."""
    cluster = Cluster(
        render("gke", values(fleet)), fleet, tmp_path / "kubelet", database=postgres_url
    )
    with cluster.kubelet as kubelet:
        assert kubelet.run(one_pod(cluster.release.one("Job"))).wait(UP_S) == "Succeeded"
        check = kubelet.run(cluster.release.one("Pod"))
        assert check.wait(UP_S) == "Succeeded", check.describe()
    found = check.log("doctor")
    assert all(
        words in found
        for words in ("has its tables", fleet.redis.url.rpartition("/")[0], fleet.provider.url)
    ), found


def test_bundled_stores_keep_what_they_have(render: Render) -> None:
    """Redis and PostgreSQL of the smallest installation: ready by their own probes, with the
    password of their Secret; deleted and made again, they have what was written."""
    release = render("minimal")
    namespace = Namespace.of(release.manifests)
    with (
        # Not below pytest's folder, which no other user may enter: under root, PostgreSQL is one.
        TemporaryDirectory(prefix="penstock-stores-") as folder,
        Kubelet(Path(folder) / "kubelet", namespace, images=IMAGES, pace=PACE) as kubelet,
    ):
        Path(folder).chmod(0o755)
        password = {
            store: namespace.one("Secret", f"fleet-penstock-{store}", "password")
            for store in ("redis", "postgres")
        }
        for life in ("first", "second"):
            pods = {
                store: kubelet.run(one_pod(release.one("StatefulSet", f"fleet-penstock-{store}")))
                for store in password
            }
            until(partial(_are_up, list(pods.values())), UP_S, "both are ready")
            cache = Redis(pods["redis"].address, password=password["redis"])
            with psycopg.connect(
                f"host={pods['postgres'].address} user=penstock dbname=penstock",
                password=password["postgres"],
            ) as database:
                if life == "first":
                    cache.set("kept", "yes")
                    database.execute("create table kept as select 'yes'")
                    database.commit()
                else:
                    assert cache.get("kept") == b"yes"
                    assert database.execute("select * from kept").fetchall() == [("yes",)]
            for pod in pods.values():
                pod.delete()
                assert not kubelet.journal.of(pod.name, Did.KILL)


@pytest.mark.long
def test_the_shortest_notice_of_all_is_long_enough(
    fleet: Fleet, render: Render, tmp_path: Path
) -> None:
    """On GKE a pod has 15 s and drains for 10 of them: at the chart's own pace, with calls in
    flight, it ends with 0."""
    gke = Cluster(render("gke", values(fleet, api={})), fleet, tmp_path / "kubelet", pace=1)
    with gke.kubelet:
        api, _ = gke.up("api", "control")
        assert api.grace_s == 15
        job = fill(fleet, "gke")
        gke.down("api")
        fleet.provider.tell(latency_ms=5)
        assert (api.exit_code("penstock"), fleet.depths(job)["queued"]) == (0, DOCUMENTS), (
            api.describe()
        )


@pytest.mark.long
def test_a_pod_ends_while_redis_hangs(
    render: Render, tmp_path: Path, postgres_server: Postgres
) -> None:
    """A Redis that takes connections and answers nothing keeps no pod beyond its grace period, at
    whose end it is killed, since only Redis is left to write to. Each call that was in flight is
    made once more when its lease is over, and no other.
    """
    # a ledger of its own: in that of the other tests is a job which does not end
    with Fleet(tmp_path / "hung", database_url=postgres_server.new_database()) as hung:
        hung.provider.start("--latency-ms", "5", "--latency-sigma", "0", "--api-key", KEY)
        settings: Values = {"settings": {"visibility_timeout_s": 5}}
        gke = Cluster(
            render("gke", overlay(values(hung, api={}), settings)), hung, tmp_path / "kubelet"
        )
        with gke.kubelet:
            api, _ = gke.up("api", "control")
            job = fill(hung, "hung")
            os.kill(hung.redis.pid, signal.SIGSTOP)
            try:
                gke.down("api")
            finally:
                os.kill(hung.redis.pid, signal.SIGCONT)
            hung.provider.tell(latency_ms=5)
            gke.start("api")
            hung.wait_for(job, JobState.COMPLETED, 90)
            account = hung.account(job, DOCUMENTS)
            assert (account.dead, account.extra_calls <= SLOTS) == ({}, True), api.describe()
