"""The chart in a real cluster, its pods as processes here: what the API server, the controllers,
the scheduler and KEDA add.

`KUBECONFIG=… pytest tests/chart/test_with_cluster.py`, for a cluster that a test may use (kind,
k3d). What these tests make is in namespaces and on nodes of their own (cluster.py).
"""

from __future__ import annotations

import io
import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from chart.cluster import BUCKET, KUBECONFIG, SLOTS, UP_S, Cluster, cluster, namespace
from chart.conftest import CHART, EXAMPLES, Render, example, overlay
from chart.helm_library import RELEASE, Helm, Manifest, Refused, Values
from chart.pods import WITH_TEMPLATES
from chart.test_refusals import MISSPELT, REFUSALS
from fleet import until
from kubelet import MERGE, Api, ApiError, Service, one_pod
from servers import Postgres, S3Server

from penstock_ledger.model import Job, JobState

DOCUMENTS = 60
LONG_MS = 30_000  # longer than the drain of a spot pod, 10 s
# Everything that runs still, once it may answer at once: the calls that were begun before.
DONE_S = UP_S + LONG_MS / 1000

SCALED_OBJECT = ("keda.sh/v1alpha1", "ScaledObject")
OF_OPERATORS = ("keda.sh/", "monitoring.coreos.com/")  # which a cluster may lack

pytestmark = pytest.mark.skipif(
    not KUBECONFIG, reason="no cluster: set KUBECONFIG to one that tests may use (kind, k3d)"
)

# Without KUBECONFIG these skip even where CI=true: no package carries an API server, so a machine
# that lacks one is no fault of its setup, as a missing redis-server would be. What pods do by
# themselves is in test_pods_run.py, and runs everywhere.


@pytest.fixture
def name(tmp_path: Path) -> str:
    """Of a namespace; two runs at once do not meet."""
    return f"penstock-{int(time.time() * 1000):x}"


@pytest.fixture
def api(tmp_path: Path) -> Api:
    folder = tmp_path / "api"
    folder.mkdir()
    return Api.of(Path(KUBECONFIG), folder)


@pytest.fixture
def fleet(
    name: str, tmp_path: Path, postgres_server: Postgres, s3_server: S3Server
) -> Iterator[Cluster]:
    with cluster(name, tmp_path, postgres_server, s3_server) as found:
        yield found


@pytest.fixture
def scaled(api: Api, fleet: Cluster) -> Cluster:
    """In a cluster with a KEDA that reaches the Redis of here."""
    if not api.knows(*SCALED_OBJECT):
        pytest.skip("the cluster has no KEDA")
    deployments = api.call("GET", "/apis/apps/v1/deployments")["items"]
    if "keda-operator" in [one["metadata"]["name"] for one in deployments]:
        pytest.skip("KEDA is a pod of the cluster, and reaches no Redis on this machine's loopback")
    return fleet


# -- what the API server takes ---------------------------------------------------------------------


# What no example has, over examples/gke.yaml.
MORE: Values = {
    "keda": {"enabled": True},
    "workerPools": {
        "llama": {"kind": "gpu", "model": {"name": "m"}, "vllm": {"engine": "sidecar"}}
    },
    "gateway": {
        "enabled": True,
        "files": "s3://b/doors",
        "ingress": {"enabled": True, "host": "batch.example.com", "tlsSecret": "batch-tls"},
    },
    "flower": {"enabled": True, "auth": {"existingSecret": "penstock-flower"}},
    "spot": {"notices": "gcp"},
    "tracing": {"share": 0.01, "endpoint": "http://collector.monitoring:4318"},
    "monitoring": {"dashboards": {"enabled": True}},
}


@pytest.mark.parametrize(
    ("example_name", "changes"), [*((name, {}) for name in EXAMPLES), ("gke", MORE)]
)
def test_every_example_is_accepted(
    example_name: str, changes: Values, name: str, api: Api, render: Render
) -> None:
    """Each object, and each pod that is made of it, passes strict validation under Pod Security
    "restricted" without a warning; applied for good, controllers make its pods."""
    with namespace(api, name):
        until(
            lambda: api.call("GET", f"/api/v1/namespaces/{name}/serviceaccounts")["items"],
            30,
            "an account",
        )
        wanted = {}
        for manifest in render(example_name, changes).manifests:
            if not api.knows(manifest["apiVersion"], manifest["kind"]):
                assert manifest["apiVersion"].startswith(OF_OPERATORS)
                continue
            manifest = manifest | {"metadata": manifest["metadata"] | {"namespace": name}}
            api.apply(manifest, dry_run=True)
            assert api.warnings == [], manifest
            if manifest["kind"] in WITH_TEMPLATES:
                pod: Manifest = one_pod(manifest) | {"apiVersion": "v1", "kind": "Pod"}
                pod["spec"] = pod["spec"] | {"serviceAccountName": "default"}
                api.apply(pod, dry_run=True)
                assert api.warnings == [], pod
            if "helm.sh/hook" not in manifest["metadata"].get("annotations", {}):
                api.apply(manifest)
                if manifest["kind"] in WITH_TEMPLATES:
                    path = f"{api.path(manifest)}/{manifest['metadata']['name']}"
                    wanted[path] = manifest["spec"].get("replicas", 1)
        assert wanted
        for path, replicas in wanted.items():
            until(partial(_are_made, api, path, replicas), UP_S, f"pods of {path} are made")


def _are_made(api: Api, path: str, replicas: int) -> bool:
    status = api.call("GET", path)["status"]
    return bool(status.get("replicas", status.get("active", 0)) == replicas)


def made(api: Api, name: str) -> list[str]:
    """What is in a namespace of a release, Helm's own records included; events go by themselves."""
    return [
        f"{kind['name']}/{one['metadata']['name']}"
        for path in ("api/v1", "apis/apps/v1", "apis/batch/v1", "apis/networking.k8s.io/v1")
        for kind in api.call("GET", f"/{path}")["resources"]
        if kind["namespaced"] and {"create", "list"} <= set(kind["verbs"])
        if kind["kind"] != "Event"
        for one in api.call("GET", f"/{path}/namespaces/{name}/{kind['name']}")["items"]
        if RELEASE in one["metadata"]["name"]
    ]


def test_wrong_values_are_refused_before_the_cluster_is_touched(name: str, api: Api) -> None:
    """`helm install` with any of the values that cannot work leaves nothing in the namespace."""
    cases = {case: overlay(example(of), over) for case, (of, over, *_) in REFUSALS.items()}
    if api.knows(*SCALED_OBJECT):
        del cases["no keda"]
    cases |= {path: overlay(example("minimal"), over) for over, path in MISSPELT}
    with namespace(api, name):
        helm = Helm(Path(KUBECONFIG), name, CHART)
        for values in cases.values():
            with pytest.raises(Refused):
                helm.install(values)
        assert helm.revisions() == []
        assert made(api, name) == []
    print(f"{len(cases)} sets of wrong values refused")


# -- a release at work -----------------------------------------------------------------------------


def fill(fleet: Cluster, pods: int, *, latency_ms: int = LONG_MS) -> Job:
    """A job, with all slots of so many pods in flight."""
    fleet.fleet.provider.tell(latency_ms=latency_ms)
    job = fleet.fleet.submit(DOCUMENTS, key=f"filled by {pods}")
    until(lambda: fleet.fleet.provider.in_flight() == pods * SLOTS, UP_S, "all slots are in flight")
    return job


def finish(fleet: Cluster, job: Job, documents: int = DOCUMENTS) -> int:
    """Let the provider answer at once; how many calls were made beyond one per document, when each
    has its result."""
    fleet.fleet.provider.tell(latency_ms=5)
    fleet.fleet.wait_for(job, JobState.COMPLETED, DONE_S)
    account = fleet.fleet.account(job, documents)
    assert account.dead == {}
    return account.extra_calls


def test_an_eviction_loses_nothing(fleet: Cluster) -> None:
    """A pod that is evicted with calls in flight, once the disruption budget allows it, gives them
    back and ends with 0; its successor goes on."""
    off_spot = {"spot": {"provider": ""}, "workerPools": {"api": {"replicas": 1}}}
    grace = {"workerPools": {"api": {"terminationGracePeriodSeconds": 15, "drainSeconds": 1}}}
    fleet.helm.install(fleet.values(overlay(off_spot, grace)))
    fleet.wait_until_ready(api=1, control=1)
    job = fill(fleet, 1)
    (evicted,) = fleet.running("api")
    until(lambda: fleet.evict(evicted), UP_S, "the disruption budget allows it")
    until(evicted.task.done, UP_S, "the pod has ended")
    assert evicted.exit_code("penstock") == 0, evicted.describe()
    assert finish(fleet, job) <= SLOTS
    with pytest.raises(ApiError, match="404"):
        fleet.api.call("GET", fleet.path("api/v1", "pods", evicted.name))


def test_a_tainted_node_loses_nothing(fleet: Cluster) -> None:
    """Pods of a spot pool stand on different nodes. One whose node is drained by a taint in mid-job
    gives back what it holds within its notice, and what replaces it stands on the other node."""
    fleet.helm.install(fleet.values())
    fleet.wait_until_ready(api=2, control=1)
    job = fill(fleet, 2)
    (leaving,) = fleet.running("api", "spot-1")
    began = time.monotonic()
    fleet.nodes["spot-1"].taint("spot/preempted", "NoExecute")
    until(leaving.task.done, UP_S, "the pod has ended")
    took_s = time.monotonic() - began
    assert leaving.exit_code("penstock") == 0, leaving.describe()
    until(lambda: len(fleet.running("api", "spot-2")) == 2, UP_S, "its successor runs")
    extra = finish(fleet, job)
    assert extra <= SLOTS
    print(f"tainted: the pod was gone after {took_s:.0f} s; {extra} of {DOCUMENTS} calls repeated")


def test_a_node_that_vanishes_costs_what_it_had_in_flight(fleet: Cluster) -> None:
    """A machine is gone in mid-job without a word: the other pod finishes the job as leases run
    out, and once the cluster has given the node up, the pool has its pods again."""
    settings: Values = {"settings": {"visibility_timeout_s": 3}}
    fleet.helm.install(fleet.values(settings))
    fleet.wait_until_ready(api=2, control=1)
    job = fill(fleet, 2, latency_ms=4_000)
    began = time.monotonic()
    fleet.nodes["spot-1"].vanish()
    extra = finish(fleet, job)
    took_s = time.monotonic() - began
    assert extra <= SLOTS
    fleet.nodes["spot-1"].remove()
    until(lambda: fleet.ready("api") == 2 == len(fleet.running("api", "spot-2")), UP_S, "two pods")
    print(f"vanished: the job was done {took_s:.0f} s later; {extra} calls repeated")


def test_a_job_and_a_batch_through_the_chart(fleet: Cluster) -> None:
    """With two pods for HTTP behind their Service: `helm test` succeeds, a job goes from bucket to
    bucket, a batch of OpenAI's client is answered by whichever pod, and while all pods of the
    doors are replaced, no request fails. `helm uninstall` lets all pods end."""
    doors: Values = {"gateway": {"enabled": True, "files": f"s3://{BUCKET}/doors"}}
    names = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")
    doors["gateway"]["extraEnv"] = [
        {"name": one, "valueFrom": {"secretKeyRef": {"name": "bucket", "key": one}}}
        for one in names
    ]
    key = json.loads(fleet.fleet.penstock("keys", "create", "first", "--scope", "admin", "--json"))
    fleet.helm.install(fleet.values(doors))
    fleet.wait_until_ready(api=2, control=1, gateway=2)
    fleet.helm.test()

    s3 = fleet.s3.client()
    rows = "".join(f'{{"id":"doc-{n}","text":"review {n}"}}\n' for n in range(DOCUMENTS))
    s3.put_object(Bucket=BUCKET, Key="reviews.jsonl", Body=rows.encode())
    words = ("--prompt", "Summarise: {text}", "--id-field", "id", "--model", "sim")
    said = fleet.fleet.penstock("submit", f"s3://{BUCKET}/reviews.jsonl", *words)
    job = said.split()[-1]
    output = f"out/{job}/output.jsonl"
    until(
        lambda: s3.list_objects_v2(Bucket=BUCKET, Prefix=output)["KeyCount"],
        UP_S,
        "the job's output is in the bucket",
    )
    lines = s3.get_object(Bucket=BUCKET, Key=output)["Body"].read().splitlines()
    assert len(lines) == DOCUMENTS

    with Service(fleet.api, fleet.namespace, f"{RELEASE}-penstock-gateway", "http") as service:
        client = openai.OpenAI(
            base_url=f"http://{service.address}/v1", api_key=key["secret"], max_retries=0
        )
        file = client.files.create(file=("in.jsonl", io.BytesIO(_requests())), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        with asked_all_along(f"{client.base_url}batches", key["secret"]) as answers:
            before = {pod.name for pod in fleet.running("gateway")}
            rolled = overlay(doors, {"gateway": {"podAnnotations": {"rolled": "once"}}})
            fleet.helm.upgrade(fleet.values(rolled))
            fleet.wait_until_ready(gateway=2)
        assert not before & {pod.name for pod in fleet.running("gateway")}
        until(
            lambda: client.batches.retrieve(batch.id).status == "completed",
            UP_S,
            "the batch is completed",
        )
        done = client.batches.retrieve(batch.id)
        assert done.output_file_id is not None
        assert len(client.files.content(done.output_file_id).text.splitlines()) == DOCUMENTS
    assert answers.keys() == {"200"}, answers
    ended = {
        pod: "gateway" if pool == "gateway" else "penstock"
        for pool in ("api", "control", "gateway")
        for pod in fleet.running(pool)
    }
    fleet.helm.uninstall()
    until(lambda: all(pod.task.done() for pod in ended), UP_S, "all pods have ended")
    assert {pod.exit_code(main) for pod, main in ended.items()} == {0}
    tested = [f"pods/{RELEASE}-penstock-smoke"]  # Helm leaves what its tests have made
    until(lambda: made(fleet.api, fleet.namespace) == tested, UP_S, "nothing else is left")
    print(f"both pods of the doors replaced: {answers['200']} requests, all answered")


def _requests() -> bytes:
    lines = [
        {
            "custom_id": f"doc-{n}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "sim", "messages": [{"role": "user", "content": f"review {n}"}]},
        }
        for n in range(DOCUMENTS)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


@contextmanager
def asked_all_along(url: str, key: str) -> Iterator[Counter[str]]:
    """Asks over and over meanwhile, each time over a new connection; counts what came of it."""
    answers: Counter[str] = Counter()
    end = threading.Event()

    def ask() -> None:
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
        while not end.wait(0.05):
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    answers[str(answer.status)] += 1
            except (OSError, urllib.error.HTTPError) as error:
                answers[repr(error)] += 1

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        end.set()
        thread.join()


@pytest.fixture
def claims(api: Api, name: str) -> Iterator[str]:
    """A storage class, with a volume for each of the bundled stores."""
    spec = {
        "capacity": {"storage": "20Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": name,
        "hostPath": {"path": "/nowhere"},
    }
    volumes = [f"{name}-{store}" for store in ("redis", "postgres")]
    for volume in volumes:
        api.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume},
                "spec": spec,
            }
        )
    yield name
    for volume in volumes:
        api.call("DELETE", f"/api/v1/persistentvolumes/{volume}")


def test_the_smallest_installation_outlives_its_stores(claims: str, fleet: Cluster) -> None:
    """Redis and PostgreSQL as pods of the chart: a job that is submitted in a pod goes on after each
    of them was deleted under it and has come back with its claim; every document is answered."""
    documents = 160
    with ExitStack() as stack:
        at = {
            store: stack.enter_context(
                Service(fleet.api, fleet.namespace, f"{RELEASE}-penstock-{store}", store)
            ).address
            for store in ("redis", "postgres")
        }
        fleet.secret(
            "own-redis", password="pw", address=at["redis"], url=f"redis://:pw@{at['redis']}/0"
        )
        url = f"postgresql+psycopg://penstock:pw@{at['postgres']}/penstock"
        fleet.secret("own-postgres", password="pw", url=url)
        kept = {"persistence": {"storageClassName": claims}}
        stores = {
            store: kept | fleet.place | {"auth": {"existingSecret": f"own-{store}"}} for store in at
        }
        fleet.helm.install(fleet.values(stores, "minimal"))
        fleet.wait_until_ready(api=2, control=1)
        (control,) = fleet.running("control")

        def penstock(*words: str) -> str:
            return control.execute("penstock", "penstock", *words)

        rows = "".join(f'{{"id":"doc-{n}","text":"review {n}"}}\n' for n in range(documents))
        fleet.s3.client().put_object(Bucket=BUCKET, Key="small.jsonl", Body=rows.encode())
        fleet.fleet.provider.tell(latency_ms=2_000)
        words = ("--prompt", "Summarise: {text}", "--id-field", "id", "--model", "sim")
        job = penstock("submit", f"s3://{BUCKET}/small.jsonl", *words).split()[-1]
        for store in at:
            until(lambda: fleet.fleet.provider.in_flight() > 0, UP_S, "calls are in flight")
            (pod,) = fleet.running(store)
            fleet.api.call("DELETE", fleet.path("api/v1", "pods", pod.name))
            until(pod.task.done, UP_S, f"{store} has ended")
            until(partial(_is_ready, fleet, store), UP_S, f"{store} is back")
        state: dict[str, Any] = {}

        def is_over() -> bool:
            state.update(json.loads(penstock("status", job, "--json")))
            return bool(state["state"] == "completed")

        until(is_over, DONE_S, f"the job is completed: {state}")
        made = fleet.fleet.provider.calls()
        assert len(made) == documents
        print(f"bundled stores: {made.total() - documents} of {documents} calls repeated")


def _is_ready(fleet: Cluster, store: str) -> bool:
    return any(pod.is_ready for pod in fleet.running(store))


# -- KEDA ------------------------------------------------------------------------------------------

COOLDOWN_S = 10
MOST = 3  # pods
SCALING: Values = {
    "keda": {
        "enabled": True,
        "pollingInterval": 2,
        "scaleDown": {"stabilizationWindowSeconds": 5, "podsPerMinute": 10},
    },
    "workerPools": {
        "api": {"keda": {"minReplicas": 0, "maxReplicas": MOST, "cooldownPeriod": COOLDOWN_S}}
    },
}


def test_keda_wakes_a_pool_keeps_it_and_lets_it_go(scaled: Cluster) -> None:
    """From no pod to as many as the documents fill, which stay while no document is queued and all
    are in flight, for longer than the cooldown; and back to none once all is answered."""
    scaled.helm.install(scaled.values(SCALING))
    assert scaled.replicas("api") == 0
    provider = scaled.fleet.provider
    provider.tell(latency_ms=60_000)
    documents = 2 * MOST * SLOTS  # of which each pod holds as many again as it calls for
    began = time.monotonic()
    job = scaled.fleet.submit(documents, key="scaled")
    until(lambda: scaled.replicas("api") > 0, UP_S, "KEDA has seen the queue")
    woken_s = time.monotonic() - began
    until(lambda: scaled.replicas("api") == MOST, UP_S, f"KEDA has asked for {MOST} pods")
    most_s = time.monotonic() - began
    until(lambda: provider.in_flight() == MOST * SLOTS, UP_S, "all slots are in flight")
    flown = time.monotonic()
    held_s = 3 * COOLDOWN_S
    until(lambda: scaled.replicas("api") < MOST or time.monotonic() - flown > held_s, UP_S, "held")
    assert (scaled.replicas("api"), scaled.fleet.depths(job)["queued"]) == (MOST, 0)
    scaled.fleet.wait_for(job, JobState.COMPLETED, UP_S + 60)
    answered = time.monotonic()
    until(lambda: scaled.replicas("api") == 0, UP_S, "KEDA has let the pool go")
    gone_s = time.monotonic() - answered
    assert scaled.fleet.account(job, documents).extra_calls == 0
    print(
        f"KEDA: one pod asked for after {woken_s:.0f} s, {MOST} after {most_s:.0f} s, held for "
        f"{held_s} s with all in flight, none {gone_s:.0f} s after the last answer"
    )


def test_an_upgrade_a_rollback_and_the_end_of_keda_in_mid_job(scaled: Cluster) -> None:
    """While KEDA scales, an upgrade and a rollback keep the number of pods. KEDA is switched off
    whole, once the two commands that the refusal names were given. The job loses nothing."""
    documents = 2_000
    on = overlay(SCALING, {"workerPools": {"api": {"keda": {"minReplicas": 1}}}})
    scaled.helm.install(scaled.values(on))
    scaled.fleet.provider.tell(latency_ms=6_000)
    job = scaled.fleet.submit(documents, key="upgraded")
    until(lambda: scaled.ready("api") == MOST, UP_S, f"KEDA has scaled to {MOST}")

    scaled.helm.upgrade(scaled.values(overlay(on, {"settings": {"reconcile_interval_s": 2}})))
    assert scaled.replicas("api") == MOST
    scaled.helm.rollback(1)
    assert scaled.replicas("api") == MOST

    off: Values = {"keda": {"enabled": False}, "workerPools": {"api": {"replicas": 2}}}
    with pytest.raises(Refused, match="first `kubectl"):
        scaled.helm.upgrade(scaled.values(off))
    scaled_object = scaled.path("apis/keda.sh/v1alpha1", "scaledobjects", f"{RELEASE}-penstock-api")
    assert scaled.api.call("GET", scaled_object)["spec"]["maxReplicaCount"] == MOST
    scaled.api.call("DELETE", scaled_object)
    scale = scaled.path("apis/apps/v1", "deployments", f"{RELEASE}-penstock-api/scale")
    scaled.api.call("PATCH", scale, {"spec": {"replicas": 2}}, MERGE)
    scaled.helm.upgrade(scaled.values(off))
    assert scaled.replicas("api") == 2
    with pytest.raises(ApiError, match="404"):
        scaled.api.call("GET", scaled_object)
    extra = finish(scaled, job, documents)
    # The upgrade, the rollback and the last upgrade replaced all pods, and one pod was too many.
    assert extra <= 4 * MOST * SLOTS
    print(f"KEDA, upgrades: {scaled.helm.revisions()}; {extra} of {documents} calls repeated")


def test_a_rollback_to_no_pod_is_refused_and_an_upgrade_is_not(scaled: Cluster) -> None:
    """The first revision of a pool that starts at zero holds that number, which the server refuses
    while KEDA has another; an upgrade to the same values does what the rollback was for."""
    documents = 1_000
    scaled.helm.install(scaled.values(SCALING))
    scaled.fleet.provider.tell(latency_ms=6_000)
    job = scaled.fleet.submit(documents, key="from zero")
    until(lambda: scaled.ready("api") > 0, UP_S, "KEDA has woken the pool")
    scaled.helm.upgrade(scaled.values(overlay(SCALING, {"settings": {"reconcile_interval_s": 2}})))
    with pytest.raises(Refused, match=r"\.spec\.replicas"):
        scaled.helm.rollback(1)
    scaled.helm.upgrade(scaled.values(SCALING))
    assert scaled.replicas("api") > 0
    finish(scaled, job, documents)
