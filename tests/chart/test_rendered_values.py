"""What each example's values become in its manifests, beyond the smallest installation, which is
held in golden/ as a whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import golden
from chart.conftest import CHART, EXAMPLES, FLEETS, Render
from chart.helm_library import Manifest, Release
from chart.pods import WITH_TEMPLATES, container, containers, env, pod_spec, pods, pool

from penstock_gateway.settings import GatewayFields, GatewaySettings

ALIKE = [
    "name",
    "imagePullPolicy",
    "ports",
    "startupProbe",
    "readinessProbe",
    "livenessProbe",
    "securityContext",
]  # of every worker, whatever its pool
SETTLED = [
    "PENSTOCK_CONFIG",
    "PENSTOCK_METRICS_HOST",
    "PENSTOCK_METRICS_PORT",
    "PENSTOCK_PROBE_DIR",
]
CACHES = [
    "HF_HOME",
    "HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "VLLM_CACHE_ROOT",
    "XDG_CACHE_HOME",
]


def golden_worker() -> dict[str, Any]:
    """The api pool's container as golden/ has it."""
    manifests = yaml.safe_load_all(golden.PATH.read_text("utf-8"))
    api = next(one for one in manifests if one["metadata"]["name"] == "fleet-penstock-api")
    return container(api, "penstock")


def workers(release: Release) -> dict[str, Manifest]:
    return {
        name: found
        for name, found in release.all("Deployment").items()
        if "penstock/pool" in found["metadata"]["labels"]
    }


@pytest.mark.parametrize("name", FLEETS)
def test_workers_are_made_alike(name: str, render: Render) -> None:
    """In every example a worker has the probes, ports, rights and paths of the golden one; only a
    start may take longer."""
    wanted = golden_worker()
    found = {
        pool: container(manifest, "penstock") for pool, manifest in workers(render(name)).items()
    }
    assert len(found) >= 2
    for worker in found.values():
        patient = {**worker, "startupProbe": {**worker["startupProbe"], "failureThreshold": None}}
        model = {**wanted, "startupProbe": {**wanted["startupProbe"], "failureThreshold": None}}
        assert {field: patient[field] for field in ALIKE} == {
            field: model[field] for field in ALIKE
        }
        assert {key: env(worker)[key] for key in SETTLED} == {
            key: env(wanted)[key] for key in SETTLED
        }
        mounted = {mount["mountPath"] for mount in worker["volumeMounts"]}
        assert {mount["mountPath"] for mount in wanted["volumeMounts"]} <= mounted


@pytest.mark.parametrize("name", EXAMPLES)
def test_objects_belong_to_their_release(name: str, render: Render) -> None:
    """Every object has the standard labels of chart and release, and each workload selects the pods
    that it makes."""
    release = render(name)
    for manifest in release.manifests:
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "fleet", manifest["metadata"]["name"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm", manifest["metadata"]["name"]
        assert labels["app.kubernetes.io/component"], manifest["metadata"]["name"]
        if manifest["kind"] in WITH_TEMPLATES and "selector" in manifest["spec"]:
            made = manifest["spec"]["template"]["metadata"]["labels"]
            assert manifest["spec"]["selector"]["matchLabels"].items() <= made.items()


def test_every_pool_runs_its_own_lane(render: Render) -> None:
    """`kind` of a pool is the lane of its workers."""
    lanes = {
        name: container(found, "penstock")["args"][-1]
        for name, found in workers(render("gpu")).items()
    }
    assert lanes == {
        "fleet-penstock-gpu": "gpu",
        "fleet-penstock-embed": "embed",
        "fleet-penstock-control": "control",
    }


def test_a_kind_of_pool_is_one_word_of_the_schema(render: Render, tmp_path: Path) -> None:
    """A lane that is added needs no values of its own: a pool of it has those of all pools."""
    chart = tmp_path / "penstock"
    shutil.copytree(CHART, chart)
    schema = json.loads((chart / "values.schema.json").read_text())
    schema["$defs"]["kind"]["enum"].append("toy")
    (chart / "values.schema.json").write_text(json.dumps(schema))
    release = render("minimal", {"workerPools": {"toys": {"kind": "toy"}}}, chart)
    args = container(pool(release, "toys"), "penstock")["args"]
    assert args[-2:] == ["--lane", "toy"]


def test_a_scaled_object_says_what_its_pool_may_do(render: Render) -> None:
    """Limits, times and steps of KEDA are those of the values, and its target is the pool's
    Deployment."""
    spec = render("karpenter").one("ScaledObject")["spec"]
    assert spec["scaleTargetRef"] == {"name": "fleet-penstock-api"}
    assert (spec["minReplicaCount"], spec["maxReplicaCount"], spec["pollingInterval"]) == (0, 8, 15)
    assert spec["fallback"] == {
        "failureThreshold": 3,
        "replicas": 0,
        "behavior": "currentReplicasIfHigher",
    }
    assert spec["advanced"]["scalingModifiers"]["metricType"] == "AverageValue"
    assert spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleUp"] == {
        "stabilizationWindowSeconds": 0,
        "policies": [{"type": "Pods", "value": 10, "periodSeconds": 60}],
    }
    authentications = {trigger["authenticationRef"]["name"] for trigger in spec["triggers"]}
    assert authentications == set(render("karpenter").all("TriggerAuthentication"))


def test_what_prometheus_finds(render: Render) -> None:
    """Monitor and rules have the labels that the operator selects by, and the metrics keep pool and
    component."""
    release = render("karpenter")
    monitor = release.one("PodMonitor")
    for found in (monitor, release.one("PrometheusRule")):
        assert found["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    assert monitor["spec"]["podTargetLabels"] == ["penstock/pool", "app.kubernetes.io/component"]
    assert monitor["spec"]["podMetricsEndpoints"] == [
        {"port": "metrics", "path": "/metrics", "interval": "15s"}
    ]


def test_all_alerts_and_dashboards_are_shipped(render: Render) -> None:
    """The chart's own files are in the render as they are: every alert, and every dashboard under
    its file's name."""
    release = render("karpenter")
    alerts = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text("utf-8"))
    assert release.one("PrometheusRule")["spec"]["groups"] == alerts["groups"]
    boards = {
        path.name: json.loads(path.read_text("utf-8"))
        for path in (CHART / "files" / "dashboards").iterdir()
    }
    found = [one["data"] for name, one in release.all("ConfigMap").items() if "-dashboard-" in name]
    assert {name: json.loads(text) for data in found for name, text in data.items()} == boards


def test_migrations_run_once_and_are_cleared_away(render: Render) -> None:
    """The hook's job is not restarted in place, tries three times more, and leaves neither its pod
    nor itself behind."""
    job = render("karpenter").one("Job")
    assert (
        job["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
        == "before-hook-creation,hook-succeeded"
    )
    assert (job["spec"]["backoffLimit"], job["spec"]["ttlSecondsAfterFinished"]) == (3, 86_400)
    assert pod_spec(job)["restartPolicy"] == "Never"
    assert container(job, "migrate")["args"] == ["migrate"]


def test_hooks_run_where_control_pods_may(render: Render) -> None:
    """Migrations, the download of a model and `helm test` go to the nodes that the control pool has
    chosen: in a cluster whose nodes are all tainted they would wait for ever."""
    nodes: dict[str, Any] = {
        "nodeSelector": {"team": "data"},
        "tolerations": [{"key": "team", "operator": "Exists"}],
    }
    release = render("gpu", {"workerPools": {"control": nodes}})
    jobs = release.all("Job")
    assert len(jobs) == 2
    for found in (*map(pod_spec, jobs.values()), pod_spec(release.one("Pod"))):
        assert {name: found[name] for name in nodes} == nodes


@pytest.mark.parametrize(("name", "holder"), [("gpu", "penstock"), ("gpu-sidecar", "vllm")])
def test_engines_write_where_they_may(name: str, holder: str, render: Render) -> None:
    """The root is read-only: every cache of a container with an engine lies in a volume, and shared
    memory is memory."""
    engine = container(pool(render(name), "gpu"), holder)
    mounts = {
        mount["mountPath"]: mount["name"]
        for mount in engine["volumeMounts"]
        if not mount.get("readOnly")
    }
    for variable in CACHES:
        path = env(engine)[variable]
        assert any(path == mount or path.startswith(f"{mount}/") for mount in mounts), (
            variable,
            path,
        )
    assert mounts["/dev/shm"] == "shm"
    assert env(engine)["VLLM_NO_USAGE_STATS"] == "1"
    # torch asks the system for a name, and user 10001 has none
    assert env(engine)["USER"] == "penstock"


def test_an_engine_in_process_gets_its_arguments(render: Render) -> None:
    """`vllm.args` and `maxNumSeqs` are settings of the worker, which takes its slots from the
    engine that is up."""
    found = env(container(pool(render("gpu"), "gpu"), "penstock"))
    assert json.loads(found["PENSTOCK_GPU__ENGINE"]) == {
        "gpu_memory_utilization": 0.92,
        "max_model_len": 8192,
    }
    assert found["PENSTOCK_GPU__MAX_NUM_SEQS"] == "512"
    assert "PENSTOCK_CONCURRENCY" not in found
    found = env(
        container(
            pool(render("gpu", {"workerPools": {"gpu": {"concurrency": 700}}}), "gpu"), "penstock"
        )
    )
    assert found["PENSTOCK_CONCURRENCY"] == "700"


def test_an_engine_beside_the_worker_gets_its_arguments(render: Render) -> None:
    """The same values are the sidecar's command line, and the hub's token comes from a Secret."""
    vllm = container(pool(render("gpu-sidecar"), "gpu"), "vllm")
    assert vllm["command"] == ["vllm", "serve"]
    assert vllm["args"][0] == "meta-llama/Llama-3.1-8B-Instruct"
    names = vllm["args"].index("--served-model-name")
    assert vllm["args"][names + 1 : names + 3] == ["meta-llama/Llama-3.1-8B-Instruct", "llama-8b"]
    wanted = "--port=8000 --max-model-len=8192 --enable-prefix-caching --tensor-parallel-size=2"
    assert set(wanted.split()) <= set(vllm["args"])
    # vLLM's own, for the card
    assert not [argument for argument in vllm["args"] if argument.startswith("--max-num-seqs")]
    told = render("gpu-sidecar", {"workerPools": {"gpu": {"vllm": {"maxNumSeqs": 96}}}})
    assert "--max-num-seqs=96" in container(pool(told, "gpu"), "vllm")["args"]
    assert env(container(pool(told, "gpu"), "penstock"))["PENSTOCK_CONCURRENCY"] == "192"
    assert env(vllm)["HF_TOKEN"] == {"secretKeyRef": {"name": "huggingface", "key": "token"}}
    probe = vllm["livenessProbe"]
    assert "http://127.0.0.1:8000/health" in probe["exec"]["command"][-1]
    assert (probe["periodSeconds"], probe["failureThreshold"]) == (30, 3)


def test_a_sidecars_worker_is_small(render: Render) -> None:
    """Beside an engine the worker holds twice what that computes at once, and asks for no GPU's
    memory."""
    worker = container(pool(render("gpu-sidecar"), "gpu"), "penstock")
    assert env(worker)["PENSTOCK_CONCURRENCY"] == "512"
    assert worker["resources"] == {
        "limits": {"memory": "2Gi"},
        "requests": {"cpu": "500m", "memory": "512Mi"},
    }
    assert {mount["mountPath"] for mount in worker["volumeMounts"]} == {
        "/etc/penstock",
        "/run/penstock",
        "/tmp",
    }


def _fetch(release: Release) -> Manifest:
    (job,) = (found for name, found in release.all("Job").items() if "fetch" in name)
    return job


def test_a_model_is_fetched_once_for_all_pods(render: Render) -> None:
    """One job downloads the pinned revision into the claim and marks it complete; pods wait for
    that very mark."""
    release = render("gpu")
    job = _fetch(release)
    fetch, wait = container(job, "prefetch"), container(pool(release, "gpu"), "wait-for-model")
    found = env(fetch)
    assert (found["MODEL"], found["REVISION"]) == (
        "Qwen/Qwen3-8B",
        "b968826d9c46dd6066d109eabc6255188de91218",
    )
    assert found["MARK"] == env(wait)["MARK"] == f"{found['FOLDER']}/.penstock-complete"
    download, mark = fetch["args"][0].split(" && ")
    assert download == 'hf download "$MODEL" --revision "$REVISION" --local-dir "$FOLDER"'
    assert mark == 'touch "$MARK"'
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for spec in (pod_spec(job), pod_spec(pool(release, "gpu")))
        for volume in spec["volumes"]
        if volume["name"] == "models"
    ]
    assert claims == ["fleet-penstock-gpu-models"] * 2


def test_a_fetch_gives_up_some_time(render: Render) -> None:
    """The job tries again on its node and off spot, five times more and for two hours at most."""
    job = _fetch(render("gpu"))
    assert (job["spec"]["backoffLimit"], job["spec"]["activeDeadlineSeconds"]) == (5, 7200)
    assert pod_spec(job)["restartPolicy"] == "OnFailure"
    terms = pod_spec(job)["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    (match,) = terms["nodeSelectorTerms"][0]["matchExpressions"]
    assert (match["key"], match["operator"]) == ("cloud.google.com/gke-spot", "NotIn")


def test_a_claim_is_what_the_values_ask_for(render: Render) -> None:
    """Size and class are the values', and several nodes may mount it."""
    claim = render("gpu").one("PersistentVolumeClaim")["spec"]
    assert claim["resources"] == {"requests": {"storage": "50Gi"}}
    assert (claim["storageClassName"], claim["accessModes"]) == ("filestore-rwx", ["ReadWriteMany"])


def test_pods_may_be_placed_by_label(render: Render) -> None:
    """A pool's nodeSelector is its pods', and no other pool's."""
    release = render("gpu")
    assert pod_spec(pool(release, "gpu"))["nodeSelector"] == {
        "cloud.google.com/gke-accelerator": "nvidia-l4"
    }
    assert [name for name, spec in pods(release) if "nodeSelector" in spec] == [
        "Deployment/fleet-penstock-gpu"
    ]


@pytest.mark.parametrize("name", EXAMPLES)
def test_commands_come_from_the_image(name: str, render: Render) -> None:
    """Containers of our images give arguments and no command, but for the shell that waits for a
    model."""
    ours = [
        (found["name"], found["command"])
        for _, spec in pods(render(name))
        for found in containers(spec)
        if found["image"].startswith("penstock") and "command" in found
    ]
    assert {name for name, _ in ours} <= {"wait-for-model"}


def test_the_http_doors_are_reached_by_their_ingress_alone(render: Render) -> None:
    """A Deployment of the fleet's image behind a Service; its port, and no other of the release, is
    open to callers."""
    gateway = {
        "enabled": True,
        "replicas": 3,
        "files": "s3://bucket/doors",
        "ingress": {"enabled": True, "host": "batch.example.com", "tlsSecret": "tls"},
    }
    controller = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}
    }
    release = render(
        "minimal", {"gateway": gateway, "networkPolicy": {"gatewayFrom": [controller]}}
    )
    found = {
        manifest["kind"]: manifest
        for manifest in release.manifests
        if manifest["metadata"]["name"].endswith("-gateway")
    }
    assert set(found) == {
        "Deployment",
        "Service",
        "Ingress",
        "PodDisruptionBudget",
        "NetworkPolicy",
    }
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for selector in (
        found["Deployment"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    only = container(found["Deployment"], "gateway")
    assert (only["args"], found["Deployment"]["spec"]["replicas"]) == (["gateway"], 3)
    assert only["image"] == container(pool(release, "api"), "penstock")["image"]
    assert env(only)["PENSTOCK_GATEWAY__FILES"] == "s3://bucket/doors"
    assert {port["name"]: port["containerPort"] for port in only["ports"]} == {
        "http": 8600,
        "metrics": 9464,
    }
    assert (env(only)["PENSTOCK_METRICS_HOST"], env(only)["PENSTOCK_METRICS_PORT"]) == (
        "0.0.0.0",
        "9464",
    )
    open_port = {"ports": [{"protocol": "TCP", "port": 8600}], "from": [controller]}
    assert found["NetworkPolicy"]["spec"]["ingress"] == [open_port]
    (rule,) = found["Ingress"]["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert (rule["host"], backend["name"]) == (
        "batch.example.com",
        found["Service"]["metadata"]["name"],
    )


def test_settings_of_the_http_doors_are_read_by_them(
    render: Render, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What values name reaches the gateway whole, and the schema knows exactly the settings that
    have no value of their own."""
    given = {
        "max_upload_bytes": 1_073_741_824,
        "hosts": ["doors.example"],
        "direct": {"timeout_s": 30},
    }
    release = render(
        "minimal", {"gateway": {"enabled": True, "files": "s3://b/doors", "settings": given}}
    )
    doors = next(
        one
        for one in release.manifests
        if one["kind"] == "Deployment" and one["metadata"]["name"].endswith("-gateway")
    )
    for name, value in env(container(doors, "gateway")).items():
        if name.startswith("PENSTOCK_GATEWAY__"):
            monkeypatch.setenv(name, value)
    read = GatewaySettings().gateway
    assert (read.max_upload_bytes, read.hosts, read.direct.timeout_s) == (
        1_073_741_824,
        ("doors.example",),
        30,
    )
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))["properties"]["gateway"][
        "properties"
    ]
    known = set(schema["settings"]["properties"])
    assert known == set(GatewayFields.model_fields) - {"host", "port", "files", "drain_s"}


def test_an_empty_list_of_peers_lets_none_in(render: Render) -> None:
    """For Kubernetes a rule without peers lets all in: an empty list makes no rule, and all are let
    in by name (S13)."""
    doors = {"gateway": {"enabled": True, "files": "s3://b/doors"}}
    shut = render("minimal", doors | {"networkPolicy": {"gatewayFrom": [], "metricsFrom": []}})
    wide = render("minimal", doors | {"networkPolicy": {"gatewayFromAnywhere": True}})
    rules = {name: policy["spec"]["ingress"] for name, policy in shut.all("NetworkPolicy").items()}
    assert (rules["fleet-penstock"], rules["fleet-penstock-gateway"]) == ([], [])
    assert all(rule.get("from") for found in rules.values() for rule in found), (
        "a rule without peers"
    )
    assert wide.one("NetworkPolicy", "fleet-penstock-gateway")["spec"]["ingress"] == [
        {"ports": [{"protocol": "TCP", "port": 8600}]}
    ]
    assert "The HTTP doors accept no connection yet" in shut.notes
    assert "The HTTP doors accept no connection yet" not in wide.notes


def test_workers_know_where_uploads_lie(render: Render) -> None:
    """Each process with a remote door refuses source_roots that hold them, so each has the setting
    (S6)."""
    release = render("minimal", {"gateway": {"enabled": True, "files": "s3://b/doors"}})
    for name in ("api", "control"):
        assert (
            env(container(pool(release, name), "penstock"))["PENSTOCK_GATEWAY__FILES"]
            == "s3://b/doors"
        )


def test_images_without_a_digest_are_named(render: Render) -> None:
    """The notes list values whose image may become another one under its tag, and none once all
    have digests (S12)."""
    digest = {"digest": f"sha256:{'0' * 64}"}
    notes = render("minimal", {}).notes
    assert "image.digest, postgres.image.digest, redis.image.digest." in notes
    pinned = render(
        "minimal", {"image": digest, "redis": {"image": digest}, "postgres": {"image": digest}}
    ).notes
    assert "digest" not in pinned
    assert "gpuImage.digest" in render("gpu", {}).notes
    assert "vllmImage.digest" in render("gpu-sidecar", {"image": digest}).notes


def test_one_pod_of_the_http_doors_may_be_evicted(render: Render) -> None:
    """A budget over a single pod would hold every drain of its node."""
    release = render(
        "minimal", {"gateway": {"enabled": True, "replicas": 1, "files": "gs://bucket/doors"}}
    )
    kinds = {
        one["kind"] for one in release.manifests if one["metadata"]["name"].endswith("-gateway")
    }
    assert kinds == {"Deployment", "Service", "NetworkPolicy"}


def test_helm_test_reaches_what_the_fleet_reaches(render: Render) -> None:
    """Credentials of buckets come to control pods by variables as well as by the service account:
    the check has all that the first control pool has."""
    key = {
        "name": "AWS_SECRET_ACCESS_KEY",
        "valueFrom": {"secretKeyRef": {"name": "s3", "key": "k"}},
    }
    own = {
        "env": {"AWS_REGION": "eu-1"},
        "extraEnv": [key],
        "envFrom": [{"secretRef": {"name": "bucket"}}],
        "settings": {"s3_endpoint_url": "http://minio:9000"},
    }
    pools = {"control": own, "other": {"kind": "control", "env": {"OTHER": "1"}}}
    (checked,) = pod_spec(render("minimal", {"workerPools": pools}).one("Pod"))["containers"]
    assert key in checked["env"]
    names = [one["name"] for one in checked["env"]]
    assert {"AWS_REGION", "PENSTOCK_S3_ENDPOINT_URL"} <= set(names)
    assert "OTHER" not in names
    assert len(set(names)) == len(names)
    assert checked["envFrom"] == own["envFrom"]


def test_helm_test_needs_no_control_pool(render: Render) -> None:
    """A fleet whose workers feed has none."""
    release = render("minimal", {"workerPools": {"control": {"enabled": False}}})
    (checked,) = pod_spec(release.one("Pod"))["containers"]
    assert "envFrom" not in checked
