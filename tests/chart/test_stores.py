"""The evaluation stores, migrations, and who may talk to whom."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import redis
from chart.conftest import FLEETS, Render
from chart.helm_library import Release
from chart.pods import container, pod_spec, pods, pool, worker_env
from servers import MissingServer, free_port, redis_binary

START_TIMEOUT_S = 10.0


@pytest.fixture
def redis_program() -> str:
    try:
        return redis_binary()
    except MissingServer as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


def test_the_rendered_redis_runs(render: Render, tmp_path: Path, redis_program: str) -> None:
    """Its own command starts a Redis with a password, AOF and no eviction, that ends well at
    SIGTERM and shows no password."""
    found = container(render("minimal").one("StatefulSet", "fleet-penstock-redis"), "redis")
    port = free_port()
    script = found["args"][0].replace("--port 6379", f"--port {port} --bind 127.0.0.1")
    (tmp_path / "bin").mkdir()
    # as both images name it: Valkey's has this link, too
    (tmp_path / "bin" / "redis-server").symlink_to(redis_program)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    process = subprocess.Popen(
        [*found["command"], script],
        cwd=tmp_path,
        env={"PATH": path, "REDIS_PASSWORD": "s3cret"},
        stdout=subprocess.DEVNULL,
    )
    try:
        client = _connected(port, process)
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        assert client.config_get("maxmemory") == {"maxmemory": str(1024**3)}
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=port).ping()
        assert "s3cret" not in Path(f"/proc/{process.pid}/cmdline").read_text()
        assert Path(f"/proc/{process.pid}/comm").read_text().strip() == "redis-server"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=START_TIMEOUT_S) == 0


def _connected(port: int, process: subprocess.Popen[bytes]) -> redis.Redis:
    client = redis.Redis(port=port, password="s3cret", decode_responses=True)
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until:
        assert process.poll() is None, "redis-server ended"
        try:
            client.ping()
        except redis.ConnectionError:
            continue
        return client
    raise AssertionError(f"no answer within {START_TIMEOUT_S:.0f} s")


def test_evaluation_stores_keep_what_they_hold(render: Render) -> None:
    """Each has a claim, one pod, and a Secret that an uninstall leaves."""
    release = render("minimal")
    for name in ("fleet-penstock-redis", "fleet-penstock-postgres"):
        spec = release.one("StatefulSet", name)["spec"]
        assert spec["replicas"] == 1
        assert [claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]] == ["data"]
        assert (
            release.one("Secret", name)["metadata"]["annotations"]["helm.sh/resource-policy"]
            == "keep"
        )
        assert release.one("Service", name)["spec"]["type"] == "ClusterIP"


def test_passwords_are_made_anew_and_long(render: Render) -> None:
    """No two installations share a generated password."""
    first, second = (
        render("minimal", {"commonLabels": {"n": n}}).one("Secret", "fleet-penstock-redis")[
            "stringData"
        ]["password"]
        for n in ("1", "2")
    )
    assert first != second
    assert len(first) == len(second) == 32


def test_generated_urls_hold_their_password(render: Render) -> None:
    """URL, address and password of one Secret belong together."""
    held = render("minimal").one("Secret", "fleet-penstock-redis")["stringData"]
    assert held["url"] == f"redis://:{held['password']}@{held['address']}/0"


@pytest.mark.parametrize("name", FLEETS)
def test_the_schema_is_there_before_the_workers(name: str, render: Render) -> None:
    """A hook migrates an external database; the bundled one, which a hook would wait for in vain,
    is migrated by each pod."""
    release = render(name)
    hooks = [
        job
        for job in release.all("Job").values()
        if "helm.sh/hook" in job["metadata"].get("annotations", {})
    ]
    by_pods = [
        part["name"]
        for manifest in release.all("Deployment").values()
        for part in pod_spec(manifest).get("initContainers", [])
        if part["name"] == "migrate"
    ]
    if name == "minimal":
        assert (hooks, by_pods) == ([], ["migrate", "migrate"])
    else:
        (hook,) = hooks
        assert hook["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
        assert hook["spec"]["activeDeadlineSeconds"] == 600
        assert "serviceAccountName" not in pod_spec(hook)  # it would not be there yet
        assert by_pods == []


def _egress(release: Release) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = release.one("NetworkPolicy", "fleet-penstock")["spec"]["egress"]
    return rules


def test_nothing_but_metrics_can_be_asked_for(render: Render) -> None:
    """One port of ingress, on fleet pods; Flower's is not among them."""
    release = render("minimal", {"flower": {"enabled": True, "auth": {"existingSecret": "flower"}}})
    (rule,) = release.one("NetworkPolicy", "fleet-penstock")["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == [9464]
    assert not release.all("Ingress")


def test_stores_answer_the_fleet_alone(render: Render) -> None:
    """The bundled stores take connections of this release's pods, and Redis those of KEDA where it
    scales."""
    for keda in (False, True):
        policies = render("minimal", {"keda": {"enabled": keda}}).all("NetworkPolicy")
        for store, others in (("redis", int(keda)), ("postgres", 0)):
            (rule,) = policies[f"fleet-penstock-{store}"]["spec"]["ingress"]
            assert len(rule["from"]) == 1 + others
            assert policies[f"fleet-penstock-{store}"]["spec"]["egress"] == []


def test_open_egress_leaves_out_cloud_credentials(render: Render) -> None:
    """Any provider may be asked, the services of clouds that hand out credentials may not (B27)."""
    four, six = (to["ipBlock"] for to in _egress(render("eks"))[-1]["to"])
    assert (four["cidr"], six["cidr"]) == ("0.0.0.0/0", "::/0")
    closed = [ip_network(cidr) for block in (four, six) for cidr in block["except"]]
    for address in (
        "169.254.169.254",
        "169.254.170.2",
        "169.254.170.23",
        "168.63.129.16",
        "100.100.100.200",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
    ):
        assert any(ip_address(address) in network for network in closed), address
    assert not any(
        ip_address(address) in network
        for network in closed
        for address in ("8.8.8.8", "10.0.0.7", "fd00::7")
    )


def test_closed_egress_names_its_addresses(render: Render) -> None:
    """With cidrs for everything no rule but DNS goes to any address."""
    closed = {
        "networkPolicy": {"egress": {"providers": {"mode": "cidrs", "cidrs": ["203.0.113.0/24"]}}}
    }
    dns, *others = _egress(render("external-redis", closed))
    assert {port["port"] for port in dns["ports"]} == {53}
    targets = [to["ipBlock"]["cidr"] for rule in others for to in rule["to"]]
    assert targets == ["10.20.0.0/24", "10.20.1.0/24", "203.0.113.0/24"]


def test_rabbitmq_is_told_and_may_be_reached(render: Render) -> None:
    """Its URL comes from a Secret to every process that connects to it, and its port is open;
    without one neither is there."""
    values = {
        "rabbitmq": {"existingSecret": "rabbit"},
        "networkPolicy": {"egress": {"rabbitmq": {"port": 5671}}},
    }
    release = render("external-redis", values)
    for name in ("api", "control"):
        assert worker_env(release, name)["PENSTOCK_BROKER_URL"] == {
            "secretKeyRef": {"name": "rabbit", "key": "url"}
        }
    assert 5671 in [port["port"] for rule in _egress(release) for port in rule.get("ports", ())]
    assert "PENSTOCK_BROKER_URL" not in str(render("external-redis"))


def test_metrics_are_scraped_where_they_are_served(render: Render) -> None:
    """The PodMonitor's port is one of each pool's pods and of those of the HTTP doors, and of no
    other pod."""
    release = render("karpenter", {"gateway": {"enabled": True, "files": "s3://b/doors"}})
    monitor = release.one("PodMonitor")["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    served = {
        pod["containers"][0]["name"]
        for _, pod in pods(release)
        if endpoint["port"]
        in [port["name"] for one in pod["containers"] for port in one.get("ports", ())]
    }
    assert served == {"penstock", "gateway"}
    for name in ("api", "base", "control"):
        ports = container(pool(release, name), "penstock")["ports"]
        assert [port["name"] for port in ports] == [endpoint["port"]]
    assert set(monitor["selector"]) == {"matchLabels"}


def test_a_new_configuration_restarts_those_that_read_it(render: Render) -> None:
    """The checksum of penstock.toml is in the pods' annotations, and changes with it alone."""

    def checksum(**settings: Any) -> str:
        annotations = pool(render("minimal", settings), "api")["spec"]["template"]["metadata"][
            "annotations"
        ]
        return str(annotations["checksum/config"])

    assert checksum() == checksum(metrics={"port": 9000})
    assert checksum() != checksum(settings={"reconcile_interval_s": 20})
