"""Jobs of Penstock as Kubernetes Jobs: what they ask the cluster for, and their pods, run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chart.conftest import Render
from chart.helm_library import Manifest, Release, Values
from chart.images import IMAGES
from chart.pods import container, env, pod_spec
from fleet import Provider, until
from kubelet import Kubelet, Namespace, one_pod

from penstock_cli.errors import (
    EXIT_DEAD_LETTERS,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
)
from penstock_cli.state import StateFolder
from penstock_producer.jobfile import JobFile

pytestmark = pytest.mark.usefixtures("forked_starts")
DOCUMENTS = 80
SLOTS = 4
CLAIM = "fleet-penstock-tickets-state"


def _job(**changes: object) -> Values:
    return {"jobs": {"tickets": changes}}


def _rules(job: Manifest) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = job["spec"]["podFailurePolicy"]["rules"]
    return rules


def test_a_job_alone_brings_nothing_but_itself(render: Render) -> None:
    """No pool, no store, no migration and no test pod: the Job, its spec, its claim, and what all
    pods have."""
    kinds = sorted(manifest["kind"] for manifest in render("job").manifests)
    assert kinds == [
        *("ConfigMap", "ConfigMap", "Job", "NetworkPolicy"),
        *("PersistentVolumeClaim", "ServiceAccount"),
    ]
    opened = render("job").one("NetworkPolicy")["spec"]["egress"]
    ports = {port["port"] for rule in opened for port in rule.get("ports", ())}
    assert ports == {53}, "no rule for a Redis and a database that it does not ask"
    assert render("job").all("PersistentVolumeClaim")[CLAIM]["metadata"]["annotations"] == {
        "helm.sh/resource-policy": "keep"
    }


def test_disruptions_go_on_and_ends_are_final(render: Render) -> None:
    """An eviction and an interruption start another pod and count for nothing; what the command
    itself ends with is not repeated, which would go on with a paused job. Anything else is a
    failure that is tried again, up to the limit."""
    job = render("job").one("Job")
    first, interrupted, final = _rules(job)
    assert (first["action"], first["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert interrupted["action"] == "Ignore"
    assert interrupted["onExitCodes"]["values"] == [EXIT_INTERRUPTED]
    assert final["action"] == "FailJob"
    assert final["onExitCodes"]["values"] == [EXIT_FAILED, EXIT_USAGE, EXIT_DEAD_LETTERS]
    assert (job["spec"]["backoffLimit"], job["spec"]["podReplacementPolicy"]) == (6, "Failed")
    assert pod_spec(job)["restartPolicy"] == "Never"


def test_a_job_for_the_fleet_is_submitted_to_it(render: Render) -> None:
    """It has the fleet's stores and no volume; a database that is away is asked again, a refusal is
    final."""
    changes = {"jobs": {"tickets": {"mode": "fleet", "spec": {"source": "s3://b/in.jsonl"}}}}
    job = next(
        job for name, job in render("minimal", changes).all("Job").items() if "tickets" in name
    )
    found = container(job, "penstock")
    assert found["args"] == ["submit", "/job/job.json"]
    assert {"PENSTOCK_REDIS_URL", "PENSTOCK_DATABASE_URL"} <= env(found).keys()
    assert [volume["name"] for volume in pod_spec(job)["volumes"]] == ["config", "job", "tmp"]
    assert _rules(job)[-1]["onExitCodes"]["values"] == [EXIT_USAGE]


def test_the_values_are_a_spec_file(render: Render, tmp_path: Path) -> None:
    """The command reads the job from them as they were written, numbers included; its key is the
    job's name unless the spec has one."""
    spec = {"source": "in.jsonl", "budget_usd": 1_000_000, "prompt_file": "p.txt", "model": "m<1>"}
    release = render("job", _job(spec=spec, files={"p.txt": "Sum up: {text}\n"}))
    for name, text in _config(release).items():
        (tmp_path / name).write_text(text)
    file = JobFile.load(tmp_path / "job.json")
    assert (file.job, file.spec().prompt, file.spec().model) == (
        "tickets",
        "Sum up: {text}",
        "m<1>",
    )
    assert json.loads(_config(release)["job.json"])["budget_usd"] == 1_000_000
    named = render("job", _job(spec=spec | {"job": "mine"}))
    assert json.loads(_config(named)["job.json"])["job"] == "mine"


def _config(release: Release) -> dict[str, str]:
    data: dict[str, str] = release.one("ConfigMap", release.one("Job")["metadata"]["name"])["data"]
    return data


def test_another_content_is_another_job_on_the_same_claim(render: Render) -> None:
    """Kubernetes changes no Job: an upgrade that changes it makes one of another name, which goes on
    where the former was; the same values make the same."""
    names, claims = set(), set()
    for changes in (
        _job(),
        _job(spec={"budget_usd": 50}),
        _job(files={"prompt.txt": "Other: {text}"}),
        _job(resources={"limits": {"memory": "4Gi"}}),
        {"image": {"tag": "0.2.0"}},
        {"providers": {"default": {"rpm": 10}}},
        _job(),
    ):
        release = render("job", changes)
        job = release.one("Job")
        names.add(job["metadata"]["name"])
        claims |= set(release.all("PersistentVolumeClaim"))
    assert (len(names), claims) == (6, {CLAIM})
    own = render("job", _job(volume={"existingClaim": "mine"}))
    assert not own.all("PersistentVolumeClaim")
    volumes = {volume["name"]: volume for volume in pod_spec(own.one("Job"))["volumes"]}
    assert volumes["work"] == {"name": "work", "persistentVolumeClaim": {"claimName": "mine"}}


def test_the_notice_of_a_node_is_the_time_to_end(render: Render) -> None:
    """On spot nodes a run has their notice, and finishes calls in all but the last 10 s of it."""
    for provider, place, (grace, drain) in (
        ("gke", "nodeAffinity", (15, "5")),
        ("eks", "nodeAffinity", (110, "100")),
        ("", None, (120, "110")),
    ):
        job = render("job", {"spot": {"provider": provider}}).one("Job")
        spec = pod_spec(job)
        assert spec["terminationGracePeriodSeconds"] == grace
        assert env(container(job, "penstock"))["PENSTOCK_DRAIN_SECONDS"] == drain
        assert list(spec.get("affinity", {})) == [place] * bool(place)


# -- run ------------------------------------------------------------------------------------------


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Provider]:
    provider = Provider(tmp_path)
    provider.start("--latency-ms", "20", "--latency-sigma", "0", "--api-key", "sk-x")
    yield provider
    provider.kill()


def test_a_pod_goes_on_where_the_one_before_was(
    render: Render, provider: Provider, tmp_path: Path
) -> None:
    """A second pod on the same claim waits until the first has ended: evicted while its calls hang,
    that ends with 130 within its time, and the second one finishes the job. Nothing that was
    answered is paid for twice."""
    documents = "".join(f'{{"id": "d{n}", "text": "a"}}\n' for n in range(DOCUMENTS))
    changes = {
        "providers": {
            "default": {
                "base_url": provider.url,
                "rpm": 1_000_000,
                "usd_per_mtok_in": 1,
                "usd_per_mtok_out": 1,
            }
        },
        "spot": {"provider": "gke"},
        **_job(
            spec={
                "source": "in.jsonl",
                "id_field": "id",
                "model": "sim",
                "prompt_file": "prompt.txt",
                "run": {"workers": 1, "concurrency": SLOTS},
            },
            files={"in.jsonl": documents},
            out="",
            envFrom=[],
            terminationGracePeriodSeconds=12,
        ),
    }
    release = render("job", changes)
    namespace = Namespace.of(release.manifests)
    namespace.put("Secret", "provider-keys", openai="sk-x")
    with Kubelet(tmp_path / "kubelet", namespace, images=IMAGES) as kubelet:
        first = kubelet.run(one_pod(release.one("Job"), 0))
        until(lambda: provider.calls().total() > 2 * SLOTS, 60, "the first one calls")
        provider.tell(latency_ms=60_000)
        until(lambda: provider.in_flight() == SLOTS, 60, "its calls hang")
        second = kubelet.run(one_pod(release.one("Job"), 1))
        until(
            lambda: second.is_ready and "is working in" in second.log("penstock"),
            60,
            "the second one waits",
        )
        first.delete()
        provider.tell(latency_ms=5)
        assert first.exit_code("penstock") == EXIT_INTERRUPTED, first.describe()
        assert second.wait(120) == "Succeeded", second.describe()
        work = second.volume("work") / "tickets"
    assert len((work / "out" / "output.jsonl").read_text().splitlines()) == DOCUMENTS
    assert DOCUMENTS <= provider.calls().total() <= DOCUMENTS + SLOTS
    assert StateFolder.existing(work / "state").has_completed("tickets")
