"""Every example, with options on top, renders into what a cluster takes."""

from __future__ import annotations

import functools
import json
import re
import shutil
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
from chart import helm_library
from chart.conftest import CHART, EXAMPLES, Render, example
from chart.helm_library import Release, Values
from chart.operator_schemas import SCHEMAS
from chart.pods import containers, pods

OLDEST, NEWEST = "1.29", "1.37"

OPTIONS: dict[str, Values] = {
    "plain": {},
    "keda": {"keda": {"enabled": True}, "workerPools": {"api": {"keda": {"minReplicas": 0}}}},
    "watched": {
        "monitoring": {"podMonitor": {"enabled": True}, "dashboards": {"enabled": True}},
        "flower": {"enabled": True, "auth": {"existingSecret": "flower"}},
        "gateway": {
            "enabled": True,
            "files": "s3://bucket/doors",
            "ingress": {
                "enabled": True,
                "host": "batch.example.com",
                "tlsSecret": "tls",
                "className": "nginx",
            },
        },
        "commonLabels": {"team": "data"},
        "imagePullSecrets": [{"name": "registry"}],
    },
    "closed": {
        "networkPolicy": {"egress": {"providers": {"mode": "cidrs", "cidrs": ["203.0.113.0/24"]}}},
        "serviceAccount": {"create": False},
        "migrate": {"enabled": False},
    },
    "jobs": {
        "jobs": {
            "handed-over": {"mode": "fleet", "spec": {"source": "s3://b/in.jsonl"}},
            "alone": {
                "spec": {"source": "/in/docs.jsonl", "model": "m", "prompt": "{text}"},
                "volume": {"accessMode": "ReadWriteOncePod", "storageClassName": "fast"},
                "activeDeadlineSeconds": 86_400,
                "settings": {"uvloop": False},
                "env": {"AWS_REGION": "eu-central-1"},
                "envFrom": [{"secretRef": {"name": "bucket"}}],
                "volumes": [{"name": "in", "persistentVolumeClaim": {"claimName": "in"}}],
                "volumeMounts": [{"name": "in", "mountPath": "/in", "readOnly": True}],
                "podAnnotations": {"a/b": "c"},
                "priorityClassName": "night",
            },
        },
        "metrics": {"otlp": {"enabled": True}},
        "tracing": {"share": 1, "endpoint": "http://collector:4318"},
    },
    "custom": {
        "spot": {"provider": "custom", "custom": {"labelKey": "tier", "labelValue": "cheap"}}
    },
}
WATCHED: Values = {
    "monitoring": {kind: {"enabled": True} for kind in ("podMonitor", "rules", "dashboards")}
}
OPTED = ("minimal", "gke", "karpenter", "gpu-sidecar")
MATRIX = [
    (name, option) for name in EXAMPLES for option in OPTIONS if option == "plain" or name in OPTED
]


@pytest.fixture(params=MATRIX, ids="-".join)
def release(request: pytest.FixtureRequest, render: Render) -> Release:
    name, option = request.param
    return render(name, OPTIONS[option])


@functools.cache
def _check_one(text: str, version: str) -> None:
    """Once for manifests that many releases share: each check reads Kubernetes' whole schema."""
    manifest = json.loads(text)
    if manifest["kind"] in SCHEMAS:
        jsonschema.validate(manifest, SCHEMAS[manifest["kind"]])
    else:
        kubernetes_validate.validate(manifest, version, strict=True)


def _check(release: Release, version: str) -> int:
    for manifest in release.manifests:
        _check_one(json.dumps(manifest, sort_keys=True), version)
    return len(release.manifests)


def test_the_newest_cluster_takes_every_manifest(release: Release) -> None:
    """No field is unknown, misspelt or of the wrong type, strictly, for Kubernetes, KEDA and the
    Prometheus operator."""
    assert _check(release, NEWEST) >= 6


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_oldest_cluster_takes_every_example(name: str, render: Render) -> None:
    """The kubeVersion that Chart.yaml promises is one whose API has all that is used."""
    assert f'kubeVersion: ">={OLDEST}.0-0"' in (CHART / "Chart.yaml").read_text()
    assert _check(render(name), OLDEST) >= 6


@pytest.mark.parametrize("name", EXAMPLES)
def test_helm_lint_finds_nothing(name: str) -> None:
    """`helm lint --strict` has no error and no warning for any example."""
    assert helm_library.lint(CHART, example(name), f"v{OLDEST}.0") == []


def test_names_are_unique_and_short(release: Release) -> None:
    """No two manifests are one object, and every name fits into a DNS label."""
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in release.manifests]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name) for _, name in names)


def test_nothing_runs_with_more_rights_than_it_needs(release: Release) -> None:
    """Every container: no root, no privilege, no capability, a read-only root, the default seccomp
    profile, no token."""
    seen = 0
    for name, spec in pods(release):
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] >= 999, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for found in containers(spec):
            rights = found["securityContext"]
            assert rights["readOnlyRootFilesystem"] is True, (name, found["name"])
            assert rights["capabilities"] == {"drop": ["ALL"]}, (name, found["name"])
            assert (rights["privileged"], rights["allowPrivilegeEscalation"]) == (False, False), (
                name,
                found["name"],
            )
            seen += 1
    assert seen


def test_service_links_stay_out_of_settings(release: Release) -> None:
    """Kubernetes would set PENSTOCK_…_PORT for Services named penstock-…, which would be read as
    settings."""
    assert all(spec["enableServiceLinks"] is False for _, spec in pods(release))


def test_every_volume_is_mounted_and_bounded(release: Release) -> None:
    """Mounts name volumes that exist, no volume is for nothing, and no emptyDir can fill its
    node."""
    for name, spec in pods(release):
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        mounted = {
            mount["name"] for found in containers(spec) for mount in found.get("volumeMounts", [])
        }
        assert mounted - {"data"} == set(volumes) - {"data"}, name
        assert all(
            "sizeLimit" in volume["emptyDir"] for volume in volumes.values() if "emptyDir" in volume
        ), name


def test_everything_asks_for_what_it_needs(release: Release) -> None:
    """Each container requests CPU and memory and has a memory limit: no pod is evicted first, none
    takes a node down."""
    for name, spec in pods(release):
        for found in containers(spec):
            resources = found["resources"]
            assert {"cpu", "memory"} <= set(resources["requests"]), (name, found["name"])
            assert "memory" in resources["limits"], (name, found["name"])


def test_no_image_floats(release: Release) -> None:
    """Each image has a digest or a tag, and no tag is `latest`."""
    for name, spec in pods(release):
        for found in containers(spec):
            assert re.search(r"(@sha256:[0-9a-f]{64}|:(?!latest$)[\w.-]+)$", found["image"]), (
                name,
                found["image"],
            )


def test_secrets_are_named_never_written(render: Render) -> None:
    """With external stores no manifest holds a Secret; every password is a reference."""
    assert all(not render(name).all("Secret") for name in EXAMPLES if name != "minimal")
    assert set(render("minimal").all("Secret")) == {
        "fleet-penstock-redis",
        "fleet-penstock-postgres",
    }


@pytest.fixture
def chart_with_files(tmp_path: Path) -> Path:
    """The chart with small alerts and a dashboard of its own, whatever is in files/."""
    chart = tmp_path / "penstock"
    shutil.copytree(CHART, chart)
    shutil.rmtree(chart / "files", ignore_errors=True)
    (chart / "files" / "dashboards").mkdir(parents=True)
    (chart / "files" / "alerts.yaml").write_text(
        "groups:\n- name: g\n  rules:\n  - alert: A\n    expr: up == 0\n    for: 5m\n"
        "    annotations:\n      summary: '{{ $labels.pod }} is down'\n"
    )
    (chart / "files" / "dashboards" / "fleet.json").write_text('{"title": "{{ of Grafana }}"}\n')
    return chart


def test_alerts_and_dashboards_are_wrapped_as_they_are(
    render: Render, chart_with_files: Path
) -> None:
    """Prometheus' and Grafana's own braces survive Helm, and every dashboard is found by Grafana's
    label."""
    release = render("minimal", WATCHED, chart_with_files)
    _check(release, NEWEST)
    rule = release.one("PrometheusRule")["spec"]["groups"][0]["rules"][0]
    assert rule["annotations"]["summary"] == "{{ $labels.pod }} is down"
    board = release.one("ConfigMap", "fleet-penstock-dashboard-fleet")
    assert board["data"] == {"fleet.json": '{"title": "{{ of Grafana }}"}'}
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_extra_objects_are_templates(render: Render) -> None:
    """Maps and texts are both rendered, with the release's values."""
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: '{{ .Release.Name }}-text'\n"
    mapped = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "{{ .Release.Name }}-map"},
    }
    release = render("minimal", {"extraObjects": [text, mapped]})
    assert {"fleet-text", "fleet-map"} <= set(release.all("ConfigMap"))
