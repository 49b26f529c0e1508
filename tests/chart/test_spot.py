"""`spot.provider` decides where pods run and how long they have, and never lets them believe in
more."""

from __future__ import annotations

from typing import Any

import pytest
from chart.conftest import Render
from chart.helm_library import Release, Values
from chart.pods import pod_spec, pool, worker_env

from penstock_workers.celery_app.ending import END_S, FINISH_S

CUSTOM: Values = {"labelKey": "tier", "labelValue": "cheap"}

# provider, label, value, tainted, grace, drain
TABLE = [
    ("gke", "cloud.google.com/gke-spot", "true", True, 15, 10),
    ("aks", "kubernetes.azure.com/scalesetpriority", "spot", True, 25, 20),
    ("eks", "eks.amazonaws.com/capacityType", "SPOT", False, 110, 105),
    ("karpenter", "karpenter.sh/capacity-type", "spot", False, 110, 105),
    ("custom", "tier", "cheap", False, 60, 55),
]


def _spot(provider: str, **more: Any) -> Values:
    return {"spot": {"provider": provider, "custom": CUSTOM, **more}}


def _times(release: Release, name: str = "api") -> tuple[int, int]:
    grace = pod_spec(pool(release, name))["terminationGracePeriodSeconds"]
    return grace, int(worker_env(release, name)["PENSTOCK_DRAIN_SECONDS"])


def _required(release: Release, name: str) -> list[dict[str, Any]]:
    affinity = pod_spec(pool(release, name))["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return [match for term in terms for match in term["matchExpressions"]]


@pytest.mark.parametrize(("provider", "label", "value", "tainted", "grace", "drain"), TABLE)
def test_a_provider_derives_place_and_time(
    provider: str, label: str, value: str, tainted: bool, grace: int, drain: int, render: Render
) -> None:
    """One word gives spot pools their nodes, their toleration, the provider's notice as grace
    period, and 5 s less to drain."""
    release = render("minimal", _spot(provider))
    assert _times(release) == (grace, drain)
    assert _required(release, "api") == [{"key": label, "operator": "In", "values": [value]}]
    tolerations = pod_spec(pool(release, "api")).get("tolerations", [])
    wanted = {"key": label, "operator": "Equal", "value": value, "effect": "NoSchedule"}
    assert tolerations == ([wanted] if tainted else [])


@pytest.mark.parametrize(("provider", "label", "value"), [row[:3] for row in TABLE])
def test_what_must_stay_keeps_off_spot(
    provider: str, label: str, value: str, render: Render
) -> None:
    """The control pool, the stores, Flower, migrations and checks avoid spot nodes and do not
    tolerate their taint."""
    flower = {"flower": {"enabled": True, "auth": {"existingSecret": "flower"}}}
    release = render("minimal", _spot(provider) | flower)
    away = {"key": label, "operator": "NotIn", "values": [value]}
    steady = [
        *(
            pool(release, "control"),
            release.one("Deployment", "fleet-penstock-flower"),
            release.one("Pod"),
        ),
        *release.all("StatefulSet").values(),
    ]
    assert len(steady) == 5
    for manifest in steady:
        terms = pod_spec(manifest)["affinity"]["nodeAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert terms == {"nodeSelectorTerms": [{"matchExpressions": [away]}]}, manifest["metadata"][
            "name"
        ]
        assert "tolerations" not in pod_spec(manifest), manifest["metadata"]["name"]


@pytest.mark.parametrize(
    ("notice", "grace", "drain"), [(110, 110, 105), (30, 30, 25), (11, 11, 6), (7, 7, 5), (6, 6, 5)]
)
def test_a_notice_of_ones_own_is_kept_to(
    notice: int, grace: int, drain: int, render: Render
) -> None:
    """`spot.noticeSeconds` replaces the provider's; the drain stays below it down to the shortest
    notice there can be."""
    assert _times(render("minimal", _spot("gke", noticeSeconds=notice))) == (grace, drain)


@pytest.mark.parametrize("provider", [row[0] for row in TABLE])
def test_an_engine_in_the_worker_has_time_to_end(provider: str, render: Render) -> None:
    """After the drain of such a pool there is as long as a worker gives its engine; SIGKILL would
    leave its memory behind."""
    release = render("gpu", _spot(provider) | {"keda": {"enabled": False}})
    for name in ("gpu", "embed"):
        grace, drain = _times(release, name)
        assert grace - drain >= END_S
        assert drain >= 5
    beside = render("gpu-sidecar", _spot(provider))
    grace, drain = _times(beside, "gpu")
    assert grace - drain == FINISH_S


def test_off_spot_there_is_a_minute(render: Render) -> None:
    """Without a provider, and in pools with `spot: false`, pods have 60 s; such pools may have as
    long as they like."""
    assert _times(render("minimal")) == (60, 55)
    assert _times(render("minimal", _spot("gke") | {"workerPools": {"api": {"spot": False}}})) == (
        60,
        55,
    )
    long = {"workerPools": {"api": {"spot": False, "terminationGracePeriodSeconds": 600}}}
    assert _times(render("minimal", _spot("gke") | long)) == (600, 595)


def test_prefer_lets_pods_run_on_demand(render: Render) -> None:
    """With `mode: prefer` no spot node is required, and none of its time is assumed away."""
    affinity = pod_spec(pool(render("karpenter"), "api"))["affinity"]["nodeAffinity"]
    assert list(affinity) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    assert _times(render("karpenter")) == (110, 105)


def test_without_a_provider_nothing_is_derived(render: Render) -> None:
    """A cluster that was not described gets no affinity and no toleration."""
    spec = pod_spec(pool(render("minimal"), "api"))
    assert "affinity" not in spec
    assert "tolerations" not in spec


def test_users_have_the_last_word_on_nodes(render: Render) -> None:
    """A pool's own affinity replaces what spot derives, its tolerations add to it."""
    own: Values = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}
        }
    }
    mine = {"key": "team", "operator": "Exists"}
    spec = pod_spec(
        pool(
            render("gke", {"workerPools": {"api": {"affinity": own, "tolerations": [mine]}}}), "api"
        )
    )
    assert spec["affinity"] == own
    assert [toleration["key"] for toleration in spec["tolerations"]] == [
        "team",
        "cloud.google.com/gke-spot",
    ]


def test_no_pod_is_marked_do_not_disrupt(render: Render) -> None:
    """Karpenter would give such a pod on spot no SIGTERM at all."""
    assert all("do-not-disrupt" not in text for text in render("karpenter").texts.values())


def test_budgets_hold_no_eviction_within_a_notice(render: Render) -> None:
    """Spot pools have no disruption budget; others have one that always lets one pod go."""
    budgets = render("karpenter").all("PodDisruptionBudget")
    assert set(budgets) == {"fleet-penstock-base", "fleet-penstock-control"}
    assert all(budget["spec"]["maxUnavailable"] == 1 for budget in budgets.values())


def test_zones_and_nodes_are_spread_over_as_far_as_possible(render: Render) -> None:
    """Spot capacity comes and goes by zone, and a node takes all its pods along; spreading never
    keeps a pod from running."""
    spreads = pod_spec(pool(render("eks"), "api"))["topologySpreadConstraints"]
    assert [spread["topologyKey"] for spread in spreads] == [
        "topology.kubernetes.io/zone",
        "kubernetes.io/hostname",
    ]
    assert {spread["whenUnsatisfiable"] for spread in spreads} == {"ScheduleAnyway"}


def test_nodes_that_may_have_no_zones_are_left_to_the_scheduler(render: Render) -> None:
    """Where a zone is missing the scheduler keeps none of these rules, nor its own default, and all
    pods come to one node: so they are said for clouds, and for others if they are asked for."""
    assert "topologySpreadConstraints" not in pod_spec(pool(render("minimal"), "api"))
    asked = render("minimal", {"poolDefaults": {"spreadZones": True}})
    assert "topologySpreadConstraints" in pod_spec(pool(asked, "api"))
    kept_off = render("eks", {"workerPools": {"api": {"spreadZones": False}}})
    assert "topologySpreadConstraints" not in pod_spec(pool(kept_off, "api"))


def test_no_worker_sleeps_before_it_drains(render: Render) -> None:
    """A preStop hook would only use up the notice."""
    release = render("eks")
    assert all("lifecycle" not in found for found in pod_spec(pool(release, "api"))["containers"])


def test_notices_are_asked_for_by_spot_pools_alone(render: Render) -> None:
    """One value: those pools have the setting, and reach the metadata service and nothing else that
    they could not before."""
    release = render("eks", {"spot": {"notices": "aws"}})
    assert worker_env(release, "api")["PENSTOCK_SPOT_NOTICES"] == "aws"
    assert "PENSTOCK_SPOT_NOTICES" not in worker_env(release, "control")
    policy = release.one("NetworkPolicy", "fleet-penstock-spot-notices")["spec"]
    assert policy["podSelector"]["matchExpressions"] == [
        {"key": "penstock/pool", "operator": "In", "values": ["api"]}
    ]
    assert pool(release, "api")["spec"]["template"]["metadata"]["labels"]["penstock/pool"] == "api"
    assert policy["egress"] == [
        {
            "to": [{"ipBlock": {"cidr": "169.254.169.254/32"}}],
            "ports": [{"protocol": "TCP", "port": 80}],
        }
    ]


def test_without_notices_the_metadata_service_stays_closed(render: Render) -> None:
    """It hands out the node's credentials; where no policies are wanted, none is made for it
    either."""
    release = render("eks")
    assert "PENSTOCK_SPOT_NOTICES" not in worker_env(release, "api")
    assert set(release.all("NetworkPolicy")) == {"fleet-penstock"}
    open_network = {"spot": {"notices": "aws"}, "networkPolicy": {"enabled": False}}
    assert not render("eks", open_network).all("NetworkPolicy")
