"""KEDA sees all work, wakes pools from zero, and an upgrade takes nothing of what it chose."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from chart.conftest import CHART, Render
from chart.helm_library import Refused, Release
from chart.pods import pool, worker_env
from metrics_page import parsed, selectors

from penstock_ledger import keys
from penstock_producer.feed.queues import queue_name
from penstock_workers.lanes.registry import home_queue, served_by
from penstock_workers.metrics.catalogue import CATALOGUE
from penstock_workers.settings import WorkerSettings

ZERO = {"keda": {"enabled": True}, "workerPools": {"api": {"keda": {"minReplicas": 0}}}}


def _scaled(
    render: Render, name: str = "karpenter", changes: dict[str, Any] | None = None
) -> dict[str, Any]:
    spec: dict[str, Any] = render(name, changes).one("ScaledObject")["spec"]
    return spec


def test_scaling_is_off_unless_asked_for(render: Render) -> None:
    """Without `keda.enabled` no object of KEDA is rendered."""
    release = render("minimal")
    assert not release.all("ScaledObject")
    assert not release.all("TriggerAuthentication")


def test_queued_and_in_flight_are_added(render: Render) -> None:
    """Both triggers make one sum: work in flight holds its pods even when the queue is empty."""
    spec = _scaled(render)
    keys = {trigger["name"]: trigger["metadata"]["listName"] for trigger in spec["triggers"]}
    assert keys == {"queued": queue_name("api"), "inflight": "unacked.api"}
    formula = spec["advanced"]["scalingModifiers"]["formula"]
    assert set(re.findall(r"[a-z]+", formula)) == set(keys)


def test_a_pod_is_worth_its_slots(render: Render) -> None:
    """The target per pod is what one holds in flight, unless the pool says otherwise."""
    assert (
        _scaled(render)["advanced"]["scalingModifiers"]["target"]
        == worker_env(render("karpenter"), "api")["PENSTOCK_CONCURRENCY"]
    )
    own = {"workerPools": {"api": {"keda": {"itemsPerReplica": 40}}}}
    assert _scaled(render, changes=own)["advanced"]["scalingModifiers"]["target"] == "40"


def test_a_pool_at_zero_wakes_by_what_exists_at_zero(render: Render) -> None:
    """The first item activates a pool without pods: nothing that is asked needs one."""
    spec = _scaled(render, "minimal", ZERO)
    assert spec["minReplicaCount"] == 0
    assert spec["advanced"]["scalingModifiers"]["activationTarget"] == "0"
    assert {trigger["type"] for trigger in spec["triggers"]} == {"redis"}


def test_an_outage_of_redis_scales_nothing_down(render: Render) -> None:
    """While KEDA cannot ask, the pods that are there stay."""
    assert _scaled(render)["fallback"]["behavior"] == "currentReplicasIfHigher"


def test_pods_go_one_by_one(render: Render) -> None:
    """Five minutes of little work, then one pod a minute: each drains."""
    down = _scaled(render)["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert down["stabilizationWindowSeconds"] == 300
    assert down["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 60}]


def test_a_warm_gpu_is_kept_for_longer(render: Render) -> None:
    """A GPU's cold start is minutes long, so its pool waits thrice as long before it goes to
    zero."""
    assert (_scaled(render)["cooldownPeriod"], _scaled(render, "gpu")["cooldownPeriod"]) == (
        300,
        900,
    )


def test_kinds_scale_on_their_own_queue(render: Render) -> None:
    """A gpu pool looks at the gpu lane's keys alone."""
    spec = _scaled(render, "gpu")
    listed = {trigger["metadata"]["listName"] for trigger in spec["triggers"]}
    assert queue_name("gpu") in listed
    assert {name.split(".")[1] for name in listed} == {"gpu"}
    assert spec["maxReplicaCount"] == 4


MODELS = (
    "tiny1",
    "Qwen/Qwen2.5-7B-Instruct",
    "/models/a/very/long/path/to/where/the/weights/of/this/model/lie/since/last/year-v2",
    "s3://bucket/weights: of today",
    "modèle/été",
)


@pytest.mark.parametrize("kind", ["gpu", "embed"])
@pytest.mark.parametrize("model", MODELS)
def test_a_pool_scales_by_the_queues_that_its_workers_look_into(
    render: Render, model: str, kind: str
) -> None:
    """KEDA counts, for each pool of a model, the very keys that a worker with its variables uses:
    those of all its names, the lane's own queue, and what the workers of this model hold."""
    pool = {"kind": kind, "model": {"name": model, "servedNames": ["mine", model]}}
    if kind == "embed":
        pool["modelCache"] = {"type": "existingClaim", "claimName": "c"}
        pool["model"] |= {"revision": "abc", "prefetch": {"enabled": True}}  # type: ignore[operator]  # a dict
    else:
        pool["vllm"] = {"lora": {"legal": "/adapters/legal", "tax/de": "/adapters/tax"}}
    release = render(
        "minimal",
        {
            "keda": {"enabled": True},
            "workerPools": {"m": pool, "api": {"keda": {"enabled": False}}},
        },
    )
    spec: dict[str, Any] = release.one("ScaledObject")["spec"]
    listed = [trigger["metadata"]["listName"] for trigger in spec["triggers"]]
    assert sorted(listed) == sorted(counted(worker_env(release, "m"), kind))
    formula = spec["advanced"]["scalingModifiers"]["formula"]
    assert sorted(formula.split(" + ")) == sorted(trigger["name"] for trigger in spec["triggers"])


def test_a_pool_counts_what_waits_for_adapters_that_its_workers_find(render: Render) -> None:
    """Their queues have names that the chart cannot know: the key under which the control loop
    counts them is asked for."""
    pool = {
        "kind": "gpu",
        "model": {"name": "Qwen/Qwen2.5-7B-Instruct"},
        "vllm": {"loraFrom": "s3://models/loras"},
    }
    alone = {
        "keda": {"enabled": True},
        "workerPools": {"m": pool, "api": {"keda": {"enabled": False}}},
    }
    release = render("minimal", alone)
    triggers = {
        one["name"]: one["metadata"]["listName"]
        for one in release.one("ScaledObject")["spec"]["triggers"]
    }
    assert set(triggers.values()) == counted(worker_env(release, "m"), "gpu")
    assert triggers["found"] == keys.found_waiting(queue_name("gpu", "Qwen/Qwen2.5-7B-Instruct"))


def test_a_sidecars_worker_knows_the_names_of_its_model(render: Render) -> None:
    """So it keeps what it holds where KEDA counts it, before the server has said what it serves."""
    release = render("gpu-sidecar", {"keda": {"enabled": True}})
    listed = {
        trigger["metadata"]["listName"]
        for trigger in release.one("ScaledObject")["spec"]["triggers"]
    }
    assert listed == set(counted(worker_env(release, "gpu"), "gpu"))


def counted(variables: Mapping[str, str], lane: str) -> set[str]:
    """What a worker with these variables makes of them."""
    start = f"PENSTOCK_{lane.upper()}__"
    own = {
        name.removeprefix(start).lower(): text
        for name, text in variables.items()
        if name.startswith(start)
    }
    parsed = {name: json.loads(text) if text[:1] in "[{" else text for name, text in own.items()}
    settings = WorkerSettings.load(lane=lane, **{lane: parsed})
    served = served_by(settings)
    assert served is not None
    home = home_queue(settings)
    finds = lane == "gpu" and (
        settings.gpu.lora_from is not None or settings.gpu.upstream_url is not None
    )
    found = {keys.found_waiting(home)} if finds else set[str]()
    return {*served.queues(lane), queue_name(lane), keys.unacked(home)} | found


def test_a_fresh_install_starts_at_the_minimum(render: Render) -> None:
    """Where nothing runs yet, a scaled pool starts at minReplicas, and an unscaled one at
    replicas."""
    release = render("karpenter")
    replicas = {
        name: found["spec"]["replicas"] for name, found in release.all("Deployment").items()
    }
    assert replicas == {
        "fleet-penstock-api": 0,
        "fleet-penstock-base": 1,
        "fleet-penstock-control": 2,
    }


def test_an_hpa_does_what_keda_would(render: Render) -> None:
    """Without KEDA the same pool has the same target, limits and pace, and no object of KEDA; the
    number of pods is the HPA's from the start."""
    spec = render("hpa").one("HorizontalPodAutoscaler")["spec"]
    assert not render("minimal").all("HorizontalPodAutoscaler")
    assert not render("hpa").all("ScaledObject")
    assert not render("hpa").all("TriggerAuthentication")
    keda = _scaled(
        render, "hpa", {"autoscaling": {"hpa": {"enabled": False}}, "keda": {"enabled": True}}
    )
    (asked,) = spec["metrics"]
    target = keda["advanced"]["scalingModifiers"]["target"]
    assert asked["external"]["target"] == {"type": "AverageValue", "averageValue": target}
    assert spec["behavior"] == keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    limits = (spec["minReplicas"], spec["maxReplicas"])
    assert limits == (keda["minReplicaCount"], keda["maxReplicaCount"])
    assert spec["scaleTargetRef"]["name"] == keda["scaleTargetRef"]["name"]
    assert _replicas(render("hpa")) is None


def _queries(release: Release) -> dict[str, str]:
    """What prometheus-adapter is given, by the metrics that HPAs ask for."""
    data = release.one("ConfigMap", "fleet-penstock-adapter")["data"]["prometheus-adapter.yaml"]
    rules = yaml.safe_load(data)["rules"]["external"]
    asked = {
        found["spec"]["metrics"][0]["external"]["metric"]["name"]
        for found in release.all("HorizontalPodAutoscaler").values()
    }
    assert asked == {rule["name"]["as"] for rule in rules}
    return {rule["name"]["as"]: rule["metricsQuery"] for rule in rules}


def test_the_adapter_asks_for_series_that_there_are(render: Render) -> None:
    """Its queries are PromQL over metrics of control loops by labels that they have, in the
    release's namespace unless the values single out the fleet in another way."""
    models = {name: {"kind": "gpu", "model": {"name": f"m-{name}"}} for name in ("a", "b")}
    one_each = {name: pool | {"keda": {"minReplicas": 1}} for name, pool in models.items()}
    release = render("hpa", {"workerPools": one_each})
    labels = {metric.name: set(metric.labels) for metric in CATALOGUE if metric.source == "control"}
    queries = _queries(release)
    assert len(queries) == 3
    for query in queries.values():
        for name, picked in selectors(parsed(query)):
            assert picked - {"namespace"} <= labels[name], query
            assert "namespace" in picked
    own = render("hpa", {"autoscaling": {"hpa": {"matchers": 'cluster="c"'}}})
    (query,) = _queries(own).values()
    assert all("cluster" in picked for _, picked in selectors(parsed(query)))


@pytest.mark.parametrize("alone", [True, False], ids=["one-model", "two-models"])
def test_the_adapter_adds_up_what_keda_adds_up(render: Render, alone: bool) -> None:
    """For a pool of a model, queued items of its names and of those that name none, and what its
    workers hold: the number that KEDA's formula gives, from two control loops that report the same,
    whether or not a queue has ever had an item. Without a report there is no number, and HPAs leave
    the pods alone."""
    pools = {
        name: {"kind": "gpu", "model": {"name": f"m-{name}"}, "keda": {"minReplicas": 1}}
        for name in ("a", "b")[: 1 if alone else 2]
    }
    release = render("hpa", {"workerPools": pools | {"api": {"enabled": False}}, "providers": {}})
    query = _queries(release)["fleet_penstock_a_items"]
    own, other = {"gpu": 5, "gpu.m-a": 7}, {} if alone else {"gpu.m-b": 100}
    held = {"gpu.m-a": 3} | ({} if alone else {"gpu.m-b": 50})
    assert _asked(query, own | other, held) == 5 + 7 + 3
    assert _asked(query, {"gpu": 2}, {}) == 2
    assert _asked(query, {}, {}) == 0
    assert _evaluated(parsed(query), []) == {}


Labels = frozenset[tuple[str, str]]


def _asked(query: str, queued: Mapping[str, int], held: Mapping[str, int]) -> float:
    """The value of the query where these queues have such messages, as control loops show them
    (fleet_figures.py)."""
    samples: list[tuple[str, dict[str, str], float]] = []
    for instance in ("x", "y"):
        lane = {"lane": "gpu", "namespace": "penstock", "instance": instance}
        elsewhere = lane | {"namespace": "of-others"}
        samples += [
            ("penstock_queue_depth", lane, sum(queued.values())),
            ("penstock_queue_depth", elsewhere, 1e6),
            ("penstock_queue_depth", lane | {"lane": "api"}, 1e6),
            ("penstock_unacked", lane, sum(held.values())),
        ]
        for queue in (queued.keys() | held.keys()) - {"gpu"}:
            of_queue = lane | {"queue": f"penstock.{queue}"}
            samples += [
                ("penstock_model_queue_depth", of_queue, queued.get(queue, 0)),
                ("penstock_model_unacked", of_queue, held.get(queue, 0)),
            ]
    found = _evaluated(parsed(query), samples)
    assert isinstance(found, dict)
    (value,) = found.values()
    return value


def _evaluated(
    node: Any, samples: Sequence[tuple[str, Mapping[str, str], float]]
) -> dict[Labels, float]:
    """As much of PromQL as the queries have: selectors by equality, max, sum, +, -, or."""
    if isinstance(node, promql_parser.VectorSelector):
        wanted = {matcher.name: matcher.value for matcher in node.matchers.matchers}
        return {
            frozenset(labels.items()): value
            for name, labels, value in samples
            if name == node.name and wanted.items() <= labels.items()
        }
    if isinstance(node, promql_parser.ParenExpr):
        return _evaluated(node.expr, samples)
    if isinstance(node, promql_parser.Call):
        assert node.func.name == "vector"
        return {frozenset(): node.args[0].val}
    if isinstance(node, promql_parser.AggregateExpr):
        kept = set(node.modifier.labels) if node.modifier is not None else set()
        groups: dict[Labels, list[float]] = {}
        for labels, value in _evaluated(node.expr, samples).items():
            key = frozenset(pair for pair in labels if pair[0] in kept)
            groups.setdefault(key, []).append(value)
        into: Callable[[list[float]], float] = max if str(node.op) == "max" else sum
        return {labels: into(values) for labels, values in groups.items()}
    left, right = _evaluated(node.lhs, samples), _evaluated(node.rhs, samples)
    if str(node.op) == "or":
        return right | left
    sign = {"+": 1, "-": -1}[str(node.op)]
    return {key: left[key] + sign * right[key] for key in left.keys() & right.keys()}


LOOKUP = 'lookup "apps/v1" "Deployment" .root.Release.Namespace .pool.fullname'
LOOKUP_HPA = (
    'lookup "autoscaling/v2" "HorizontalPodAutoscaler" .root.Release.Namespace .pool.fullname'
)
TEMPLATE: dict[str, Any] = {"f:template": {}}
NUMBER: dict[str, Any] = {"f:replicas": {}}
HELM_4 = {"manager": "helm", "operation": "Apply", "fieldsV1": {"f:spec": TEMPLATE | NUMBER}}
HELM_4_WITHOUT = {"manager": "helm", "operation": "Apply", "fieldsV1": {"f:spec": TEMPLATE}}
HELM_3 = {"manager": "helm", "operation": "Update", "fieldsV1": {"f:spec": TEMPLATE | NUMBER}}
SCALED = {
    "manager": "keda-operator",
    "operation": "Update",
    "subresource": "scale",
    "fieldsV1": {"f:spec": NUMBER},
}


@pytest.fixture
def upgrade(render: Render, tmp_path: Path) -> Callable[..., Release]:
    """Rendered as in a cluster where the Deployment of the pool `api` has so many pods, by these
    managers: what `lookup` finds there stands in a copy of the chart in its place."""

    def of(
        replicas: int,
        managers: list[Any],
        changes: dict[str, Any] | None = None,
        name: str = "karpenter",
    ) -> Release:
        live = {"metadata": {"managedFields": managers}, "spec": {"replicas": replicas}}
        its = '(eq .pool.fullname "fleet-penstock-api")'
        found = f"ternary (fromJson `{json.dumps(live)}`) dict {its}"
        chart = tmp_path / f"chart-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(CHART, chart)
        template = chart / "templates" / "workers" / "_replicas.tpl"
        text = template.read_text()
        assert text.count(LOOKUP) == text.count(LOOKUP_HPA) == 1
        hpa = f'ternary (dict "spec" 1) dict (and {its} {json.dumps(name == "hpa")})'
        template.write_text(text.replace(LOOKUP, found).replace(LOOKUP_HPA, hpa))
        return render(name, changes, chart)

    return of


def _replicas(release: Release, name: str = "api") -> int | None:
    found: int | None = pool(release, name)["spec"].get("replicas")
    return found


def test_an_upgrade_leaves_a_number_alone_that_the_server_would_refuse(
    upgrade: Callable[..., Release],
) -> None:
    """Helm 4 applies on the server, where the number is KEDA's once it has scaled, whether or not the
    server has noted who changed it: an upgrade while it scales is no conflict. Until then, and under
    Helm 3, which would drop a number that is no longer said, the live one is said."""
    assert _replicas(upgrade(3, [HELM_4_WITHOUT, SCALED])) is None
    assert _replicas(upgrade(3, [HELM_4_WITHOUT])) is None
    assert _replicas(upgrade(0, [HELM_4])) == 0
    assert _replicas(upgrade(3, [HELM_4])) == 3
    assert _replicas(upgrade(3, [HELM_3, SCALED])) == 3


def test_a_number_that_is_kubernetes_own_is_not_said(
    render: Render, upgrade: Callable[..., Release]
) -> None:
    """A scaled pool of one pod holds no number in any revision, so that Helm 4 rolls back to the
    first one while KEDA scales."""
    assert (
        _replicas(render("karpenter", {"workerPools": {"api": {"keda": {"minReplicas": 1}}}}))
        is None
    )
    assert _replicas(upgrade(1, [HELM_4])) is None
    assert _replicas(upgrade(1, [HELM_3, SCALED])) is None


def test_keda_is_switched_off_whole_or_not_at_all(upgrade: Callable[..., Release]) -> None:
    """Where the server would refuse the pool's number half way through, nothing is applied, and
    what makes it right is named; with that done it is said."""
    off = {"keda": {"enabled": False}, "workerPools": {"api": {"replicas": 2}}}
    with pytest.raises(Refused) as refused:
        upgrade(5, [HELM_4_WITHOUT, SCALED], off)
    for words in (
        "has 5 pods",
        "`kubectl -n penstock delete scaledobject fleet-penstock-api --ignore-not-found`",
        "`kubectl -n penstock scale deployment fleet-penstock-api --replicas=2`",
    ):
        assert words in str(refused.value)
    assert _replicas(upgrade(2, [HELM_4_WITHOUT, SCALED], off)) == 2
    assert _replicas(upgrade(5, [HELM_3, SCALED], off)) == 2


def test_an_hpa_owns_the_number_as_keda_does(upgrade: Callable[..., Release]) -> None:
    """While it scales, an upgrade says no number that the server would refuse; switched off, the way
    to the number of the values is named, with the HPA to delete."""
    assert _replicas(upgrade(3, [HELM_4_WITHOUT, SCALED], name="hpa")) is None
    assert _replicas(upgrade(3, [HELM_4_WITHOUT], name="hpa")) is None
    assert _replicas(upgrade(3, [HELM_3, SCALED], name="hpa")) == 3
    off = {"autoscaling": {"hpa": {"enabled": False}}, "workerPools": {"api": {"replicas": 2}}}
    with pytest.raises(Refused, match="`kubectl -n penstock delete hpa fleet-penstock-api"):
        upgrade(5, [HELM_4_WITHOUT, SCALED], off, name="hpa")
    keda = {"autoscaling": {"hpa": {"enabled": False}}, "keda": {"enabled": True}}
    assert _replicas(upgrade(5, [HELM_4_WITHOUT, SCALED], keda, name="hpa")) is None


def test_keda_gets_what_it_needs_from_the_secret(render: Render) -> None:
    """Address and password come from the broker's Secret; nothing of them is written into
    manifests."""
    (external,) = render("karpenter").all("TriggerAuthentication").values()
    (bundled,) = render("minimal", ZERO).all("TriggerAuthentication").values()
    for found, secret in ((external, "penstock-broker"), (bundled, "fleet-penstock-redis")):
        references = found["spec"]["secretTargetRef"]
        assert {(ref["parameter"], ref["name"]) for ref in references} == {
            ("address", secret),
            ("password", secret),
        }
    assert {"address", "password", "url"} == set(
        render("minimal").one("Secret", "fleet-penstock-redis")["stringData"]
    )


def test_tls_and_database_number_reach_keda(render: Render) -> None:
    """KEDA reads no URLs, so the parts of the configured one are given to it by name."""
    for trigger in _scaled(render, changes={"broker": {"databaseIndex": 3}})["triggers"]:
        assert trigger["metadata"]["enableTLS"] == "true"
        assert trigger["metadata"]["databaseIndex"] == "3"
    for trigger in _scaled(render, "minimal", ZERO)["triggers"]:
        assert trigger["metadata"]["enableTLS"] == "false"


def test_workers_leave_feeding_to_the_control_pool(render: Render) -> None:
    """With a control pool no worker feeds; without one each does."""
    assert worker_env(render("minimal"), "api")["PENSTOCK_CONTROL"] == "false"
    alone = render("minimal", {"workerPools": {"control": {"enabled": False}}})
    assert "PENSTOCK_CONTROL" not in worker_env(alone, "api")
