"""What cannot work is refused before anything is installed, and each refusal says what to do."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from chart.conftest import CHART, Render
from chart.helm_library import Refused, Values

KEDA: Values = {"enabled": True}
MODEL: Values = {"name": "org/model", "revision": "abc"}


def _pool(name: str = "api", **given: object) -> Values:
    return {"workerPools": {name: given}}


def _job(**given: object) -> Values:
    return {"jobs": {"tickets": given}}


def _gpu(**given: object) -> Values:
    return _pool("gpu", enabled=True, model={"name": "/models/m"}, **given)


# id: example, changes, what the message names, the fix that it names
REFUSALS: dict[str, tuple[str, Values, str, str]] = {
    "a job without a source": (
        "job",
        {"jobs": {"tickets": {"spec": {"source": None}}}},
        "jobs.tickets.spec has no source",
        "set jobs.tickets.spec.source",
    ),
    "a job whose results end with its pod": (
        "job",
        _job(out="/results"),
        "ends with its pod",
        "set a bucket",
    ),
    "a job with two places for results": (
        "job",
        _job(spec={"run": {"out": "s3://b/out"}}),
        "spec.run.out would be overruled",
        "use jobs.tickets.out",
    ),
    "a job with a state of its own": (
        "job",
        _job(spec={"run": {"state": "/elsewhere"}}),
        "spec.run.state would be overruled",
        "leave it out",
    ),
    "a file over the spec": (
        "job",
        _job(files={"job.json": "{}"}),
        "the name of the spec's own file",
        "rename it",
    ),
    "a run that is killed before it ends": (
        "job",
        _job(terminationGracePeriodSeconds=10),
        "needs 10 s to end",
        "raise it",
    ),
    "a run that outlives its node": (
        "job",
        {"spot": {"provider": "gke"}} | _job(terminationGracePeriodSeconds=60),
        "gone after 15 s",
        "jobs.tickets.spot=false",
    ),
    "a setting of a run that the chart sets": (
        "job",
        _job(settings={"drain_seconds": 5}),
        "jobs.tickets.settings.drain_seconds would be set twice",
        "use jobs.tickets.terminationGracePeriodSeconds",
    ),
    "a setting of a run as a variable": (
        "job",
        _job(env={"PENSTOCK_UVLOOP": "false"}),
        "jobs.tickets.env.PENSTOCK_UVLOOP is a setting",
        "jobs.tickets.settings.uvloop",
    ),
    "a source that the pools cannot read": (
        "minimal",
        _job(mode="fleet", spec={"source": "in.jsonl"}, files={"in.jsonl": ""}),
        "control pods read the source",
        "mode=alone",
    ),
    "results of the fleet in a place of the job's": (
        "minimal",
        _job(mode="fleet", spec={"source": "s3://b/in.jsonl"}, out="s3://b/out"),
        "settings.results_url says",
        "leave it empty",
    ),
    "a job for a fleet that has no stores": (
        "job",
        _job(mode="fleet", out=""),
        "no broker",
        "set broker.existingSecret",
    ),
    "two scalers": (
        "hpa",
        {"keda": KEDA},
        "two would set the same number",
        "set autoscaling.hpa.enabled=false",
    ),
    "an hpa from zero": (
        "hpa",
        _pool(keda={"minReplicas": 0}),
        "no HPA goes to zero",
        "set workerPools.api.keda.minReplicas=1",
    ),
    "adapters that no metric counts": (
        "hpa",
        {
            "workerPools": {
                name: {
                    "kind": "gpu",
                    "model": {"name": f"m-{name}"},
                    "keda": {"minReplicas": 1},
                    "vllm": {"loraFrom": "s3://b/loras" if name == "a" else ""},
                }
                for name in "ab"
            }
        },
        "no metric says how much waits for adapters",
        "workerPools.a.keda.enabled=false",
    ),
    "no external metrics": (
        "hpa",
        {"checkClusterApis": True},
        "serves no external metrics",
        "install prometheus-adapter",
    ),
    "metrics for no collector": (
        "minimal",
        {"metrics": {"otlp": {"enabled": True}}},
        "no collector takes the metrics",
        "set metrics.otlp.endpoint",
    ),
    "two brokers": ("minimal", {"broker": {"existingSecret": "x"}}, "two brokers", "unset one"),
    "no broker": (
        "minimal",
        {"redis": {"enabled": False}},
        "no broker",
        "--from-literal=url=rediss://",
    ),
    "two databases": (
        "minimal",
        {"database": {"existingSecret": "x"}},
        "two databases",
        "unset one",
    ),
    "no database": (
        "minimal",
        {"postgres": {"enabled": False}},
        "no database",
        "--from-literal=url=postgresql",
    ),
    "open flower": (
        "minimal",
        {"flower": {"enabled": True}},
        "Flower shows",
        "set flower.auth.existingSecret",
    ),
    "doors whose files are in a pod": (
        "minimal",
        {"gateway": {"enabled": True, "files": "/data"}},
        "a bucket that all pods reach",
        "set gateway.files=s3://",
    ),
    "an ingress for no name": (
        "minimal",
        {"gateway": {"enabled": True, "files": "s3://b/doors", "ingress": {"enabled": True}}},
        "without a name",
        "set gateway.ingress.host",
    ),
    "uploads that jobs could read": (
        "minimal",
        {
            "gateway": {"enabled": True, "files": "s3://b/in/doors"},
            "settings": {"source_roots": ["s3://a", "s3://b/in/"]},
        },
        "could read what others upload",
        "prefixes that do not hold each other",
    ),
    "doors for some and for all": (
        "minimal",
        {
            "gateway": {"enabled": True, "files": "s3://b/doors"},
            "networkPolicy": {
                "gatewayFromAnywhere": True,
                "gatewayFrom": [{"namespaceSelector": {}}],
            },
        },
        "lets all in",
        "set one of them",
    ),
    "settings of the doors for all": (
        "minimal",
        {"settings": {"gateway": {"port": 1}}},
        "would be overruled",
        "gateway.settings",
    ),
    "a pool called gateway": (
        "minimal",
        {"gateway": {"enabled": True, "files": "s3://b/doors"}} | _pool("gateway", kind="api"),
        "the HTTP doors has that name",
        "rename the pool",
    ),
    "no pool": (
        "minimal",
        {"workerPools": {"api": {"enabled": False}, "control": {"enabled": False}}},
        "no pool is enabled",
        "workerPools.api.enabled=true",
    ),
    "no provider": (
        "gpu",
        _pool("api", enabled=True),
        "no provider to call",
        "set providers.<name>.base_url",
    ),
    "no provider reachable": (
        "minimal",
        {"networkPolicy": {"egress": {"providers": {"mode": "cidrs"}}}},
        "no provider could be reached",
        "set networkPolicy.egress.providers.cidrs",
    ),
    "a pool called flower": (
        "minimal",
        _pool("flower", kind="api"),
        "has that name",
        "rename the pool",
    ),
    "custom spot": (
        "minimal",
        {"spot": {"provider": "custom"}},
        "which nodes are spot",
        "set spot.custom.labelKey",
    ),
    "notices without spot": (
        "minimal",
        {"spot": {"notices": "aws"}},
        "no pool runs on spot nodes",
        "set spot.provider",
    ),
    "notices by a setting": (
        "eks",
        _pool(settings={"spot_notices": "aws"}),
        "set twice",
        "use spot.notices",
    ),
    "drain beyond the end": (
        "gke",
        _pool(drainSeconds=20),
        "SIGKILL comes after 15 s",
        "set drainSeconds to 10",
    ),
    "drain as long as the grace": (
        "minimal",
        _pool(terminationGracePeriodSeconds=30, drainSeconds=30),
        "SIGKILL comes after 30 s",
        "set drainSeconds to 25",
    ),
    "no time at all": (
        "minimal",
        _pool(terminationGracePeriodSeconds=5),
        "SIGKILL comes after 5 s",
        "raise",
    ),
    "grace beyond the notice": (
        "gke",
        _pool(terminationGracePeriodSeconds=60),
        "gone after 15 s",
        "spot=false",
    ),
    "budget on spot": ("eks", _pool(pdb={"enabled": True}), "holds the eviction", "leave it null"),
    "do not disrupt": (
        "karpenter",
        _pool(podAnnotations={"karpenter.sh/do-not-disrupt": "true"}),
        "no SIGTERM",
        "consolidationPolicy: WhenEmpty",
    ),
    "vllm outlives the pod": (
        "gpu-sidecar",
        _pool("gpu", vllm={"shutdownTimeoutSeconds": 30}),
        "exceed the grace period",
        "lower vllm.shutdownTimeoutSeconds",
    ),
    "no keda": (
        "minimal",
        {"keda": KEDA, "checkClusterApis": True},
        "no ScaledObject",
        "helm install keda",
    ),
    "no monitors": (
        "minimal",
        {"monitoring": {"podMonitor": KEDA}, "checkClusterApis": True},
        "no PodMonitor",
        "install the Prometheus operator",
    ),
    "no rules": (
        "minimal",
        {"monitoring": {"rules": KEDA}, "checkClusterApis": True},
        "no PrometheusRule",
        "install the Prometheus operator",
    ),
    "two scale on one queue": (
        "karpenter",
        _pool("base", keda=KEDA),
        "both scale on the queue penstock.api",
        "keda.enabled=false",
    ),
    "two scale on one model": (
        "minimal",
        {
            "keda": KEDA,
            "workerPools": {name: {"kind": "gpu", "model": {"name": "/models/m"}} for name in "ab"},
        },
        "both scale on the queue penstock.gpu._models_m~",
        "keda.enabled=false",
    ),
    "two models of one name": (
        "minimal",
        {
            "workerPools": {
                name: {"kind": "gpu", "model": {"name": f"/models/{name}/m"}} for name in "ab"
            }
        },
        "host different models under the same name",
        "change model.servedNames",
    ),
    "minimum above maximum": (
        "karpenter",
        _pool(keda={"minReplicas": 9}),
        "above maxReplicas, 8",
        "raise maxReplicas",
    ),
    "control scaled": (
        "karpenter",
        _pool("control", keda=KEDA),
        "no queue to scale by",
        "set replicas",
    ),
    "no control pool": (
        "karpenter",
        _pool("control", enabled=False),
        "no control pool runs",
        "workerPools.control.enabled=true",
    ),
    "a queue that is forgotten": (
        "minimal",
        {
            "keda": KEDA,
            "redis": {"persistence": {"enabled": False}},
            "workerPools": {"api": {"keda": {"minReplicas": 0}}},
        },
        "forgets its queue",
        "redis.persistence.enabled=true",
    ),
    "no address for keda": (
        "karpenter",
        {"broker": {"addressKey": ""}},
        "KEDA reads no URLs",
        "broker.addressKey",
    ),
    "no model": ("minimal", _pool("gpu", enabled=True), "model.name is empty", "name the model"),
    "encoder from the hub": (
        "minimal",
        _pool("embed", enabled=True, model=MODEL),
        "downloads nothing",
        "model.prefetch.enabled=true",
    ),
    "host path of nothing": (
        "minimal",
        _gpu(modelCache={"type": "hostPath"}),
        "hostPath without one",
        "set modelCache.hostPath",
    ),
    "claim of nothing": (
        "minimal",
        _gpu(modelCache={"type": "existingClaim"}),
        "existingClaim without one",
        "set modelCache.claimName",
    ),
    "one node's claim for two": (
        "minimal",
        _gpu(replicas=2, modelCache={"type": "pvc", "accessMode": "ReadWriteOnce"}),
        "may have 2 pods",
        "ReadWriteMany",
    ),
    "one node's claim for keda": (
        "gpu",
        _pool("gpu", modelCache={"accessMode": "ReadWriteOnce"}),
        "may have 4 pods",
        "ReadWriteMany",
    ),
    "prefetch to nowhere": (
        "gpu",
        _pool("gpu", modelCache={"type": "emptyDir"}),
        "needs a claim",
        "pvc or existingClaim",
    ),
    "prefetch of anything": (
        "gpu",
        _pool("gpu", model={"revision": ""}),
        "without model.revision",
        "set the commit",
    ),
    "found adapters of a sidecar": (
        "gpu-sidecar",
        _pool("gpu", vllm={"loraFrom": "s3://b/loras"}),
        "loraFrom is for engine=in-process",
        "finds no adapters by itself",
    ),
    "lora of a sidecar": (
        "gpu-sidecar",
        _pool("gpu", vllm={"lora": {"a": "/a"}}),
        "is for engine=in-process",
        "use vllm.args",
    ),
    "a setting that the chart has": (
        "minimal",
        {"settings": {"redis_url": "redis://x"}},
        "settings.redis_url",
        "use broker.existingSecret",
    ),
    "a pool's setting twice": (
        "minimal",
        _pool(settings={"drain_seconds": 3}),
        "settings.drain_seconds",
        "use workerPools.<name>.drainSeconds",
    ),
    "traces without a collector": (
        "minimal",
        {"tracing": {"share": 0.01}},
        "no collector takes the traces",
        "set tracing.endpoint",
    ),
    "a setting as variable": (
        "minimal",
        _pool(env={"PENSTOCK_WINDOW": "5"}),
        "env.PENSTOCK_WINDOW",
        "use workerPools.api.settings.window",
    ),
    "a lane as variable": (
        "minimal",
        _pool(env={"PENSTOCK_LANE": "gpu"}),
        "env.PENSTOCK_LANE",
        "use workerPools.<name>.kind",
    ),
}


_messages: dict[str, str] = {}


@pytest.fixture(scope="session")
def message(render: Render) -> Callable[[str], str]:
    """The refusal of a case, rendered once."""

    def of(case: str) -> str:
        if case not in _messages:
            name, changes, _, _ = REFUSALS[case]
            with pytest.raises(Refused) as refused:
                render(name, changes)
            _messages[case] = str(refused.value)
        return _messages[case]

    return of


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_work_is_refused_with_its_fix(case: str, message: Callable[[str], str]) -> None:
    """The message names what is wrong and what to set instead."""
    _, _, wrong, fix = REFUSALS[case]
    assert "penstock cannot be installed like this" in message(case)
    line = next(line for line in message(case).splitlines() if wrong in line)
    assert fix in line


def test_every_refusal_is_told_at_once(render: Render) -> None:
    """All refusals of a set of values are named at once."""
    with pytest.raises(Refused) as refused:
        render("gke", {"flower": {"enabled": True}, **_pool(drainSeconds=20)})
    assert "flower.auth.existingSecret" in str(refused.value)
    assert "drainSeconds" in str(refused.value)


def test_every_refusal_that_is_written_is_tested(message: Callable[[str], str]) -> None:
    """Each message of the templates is one that a case here gets."""
    template = (CHART / "templates" / "_refusals.tpl").read_text()
    written = [line for line in template.splitlines() if line.startswith("- ")]
    got = [line for case in REFUSALS for line in message(case).splitlines()]
    assert len(written) > 30
    assert [
        line for line in written if not any(_as_pattern(line).fullmatch(text) for text in got)
    ] == []


def _as_pattern(line: str) -> re.Pattern[str]:
    """A line of a template, with anything for its expressions."""
    return re.compile(".*".join(re.escape(part) for part in re.split(r"\{\{.*?\}\}", line)))


MISSPELT: list[tuple[Values, str]] = [
    ({"workerPoolz": {}}, "workerPoolz"),
    ({"workerPools": {"api": {"concurency": 3}}}, "concurency"),
    ({"workerPools": {"api": {"keda": {"minReplica": 3}}}}, "minReplica"),
    ({"workerPools": {"extra": {"replicas": 1}}}, "kind"),
    ({"workerPools": {"api": {"kind": "apis"}}}, "/workerPools/api/kind"),
    ({"workerPools": {"API": {"kind": "api"}}}, "API"),
    ({"spot": {"provider": "aws"}}, "/spot/provider"),
    ({"spot": {"noticeSeconds": 5}}, "/spot/noticeSeconds"),
    ({"imagePullSecrets": "registry"}, "/imagePullSecrets"),
    ({"image": {"digest": "sha256:beef"}}, "/image/digest"),
    ({"image": {"tag": "not a tag"}}, "/image/tag"),
    ({"vllmImage": {"tag": "-v1"}}, "/vllmImage/tag"),
    ({"workerPools": {"api": {"image": {"tag": "a/b"}}}}, "/workerPools/api/image/tag"),
    ({"commonLabels": {"not a name": "x"}}, "not a name"),
    ({"commonLabels": {"team": "not a value"}}, "/commonLabels/team"),
    ({"workerPools": {"api": {"podLabels": {"-x": "y"}}}}, "-x"),
    ({"workerPools": {"api": {"podAnnotations": {"a/b/c": "any text"}}}}, "a/b/c"),
    ({"workerPools": {"api": {"nodeSelector": {"pool": "x" * 64}}}}, "nodeSelector/pool"),
    ({"podSecurity": {"runAsUser": 0}}, "/podSecurity/runAsUser"),
    ({"providers": {"openai": {"base_url": "api.openai.com"}}}, "base_url"),
    ({"providers": {"openai": {"rpn": 5}}}, "rpn"),
    ({"providers": {"openai": {"api_key": "sk-1"}}}, "api_key"),
    ({"settings": {"reconcile_interval": 5}}, "'/settings': additional properties 'reconcile_"),
    ({"workerPools": {"api": {"settings": {"xy": 5}}}}, "'/workerPools/api/settings': additional"),
    (
        {"gateway": {"settings": {"thread": 5}}},
        "'/gateway/settings': additional properties 'thread",
    ),
    ({"jobs": {"tickets": {"volume": {"accessMode": "ReadWriteMany"}}}}, "/volume/accessMode"),
    ({"jobs": {"a-name-of-15-ch": {}}}, "a-name-of-15-ch"),
    ({"redis": {"persistence": {"size": "big"}}}, "/redis/persistence/size"),
]


@pytest.mark.parametrize(("values", "path"), MISSPELT)
def test_misspelt_values_are_refused_where_they_stand(
    values: Values, path: str, render: Render
) -> None:
    """No key is ignored, at any depth, and no key can hold a provider's key in clear text."""
    with pytest.raises(Refused) as refused:
        render("minimal", values)
    assert path in str(refused.value)
