"""GPU pools of both kinds, and where their models come from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from chart.conftest import Render
from chart.helm_library import Release, Values
from chart.pods import container, containers, env, pod_spec, pool, worker_env


def _volumes(release: Release, name: str) -> dict[str, dict[str, object]]:
    return {volume["name"]: volume for volume in pod_spec(pool(release, name))["volumes"]}


def test_a_sidecar_starts_before_the_worker_and_ends_after_it(render: Render) -> None:
    """vLLM is a native sidecar whose startup probe holds the worker back; what it still waits for
    fits into the grace period."""
    spec = pod_spec(pool(render("gpu-sidecar"), "gpu"))
    (vllm,) = spec["initContainers"]
    assert vllm["restartPolicy"] == "Always"
    assert "/health" in " ".join(vllm["startupProbe"]["exec"]["command"])
    worker = env(spec["containers"][0])
    waits = int(
        next(arg for arg in vllm["args"] if arg.startswith("--shutdown-timeout=")).partition("=")[2]
    )
    assert int(worker["PENSTOCK_DRAIN_SECONDS"]) + waits <= spec["terminationGracePeriodSeconds"]
    assert worker["PENSTOCK_GPU__UPSTREAM_URL"] == "http://127.0.0.1:8000/v1"
    assert "--host=127.0.0.1" in vllm["args"]


def test_start_up_may_take_as_long_as_the_model(render: Render) -> None:
    """startupSeconds is the budget of both probes, within one period."""
    spec = pod_spec(
        pool(render("gpu-sidecar", {"workerPools": {"gpu": {"startupSeconds": 605}}}), "gpu")
    )
    for found in containers(spec):
        probe = found["startupProbe"]
        assert (
            0 <= 605 - probe["periodSeconds"] * probe["failureThreshold"] < probe["periodSeconds"]
        )


def test_the_gpu_goes_to_who_hosts_the_engine(render: Render) -> None:
    """One container of a pod has GPUs: the sidecar, or our worker."""
    for name, holder in (("gpu-sidecar", "vllm"), ("gpu", "penstock")):
        found = containers(pod_spec(pool(render(name), "gpu")))
        assert [
            part["name"]
            for part in found
            if "nvidia.com/gpu" in part["resources"].get("limits", {})
        ] == [holder]
    assert (
        container(pool(render("gpu-sidecar"), "gpu"), "vllm")["resources"]["limits"][
            "nvidia.com/gpu"
        ]
        == 2
    )


def test_images_follow_the_engine(render: Render) -> None:
    """Beside a sidecar runs the small image; in process, the one with vLLM."""
    assert container(pool(render("gpu-sidecar"), "gpu"), "penstock")["image"].startswith(
        "penstock:"
    )
    assert container(pool(render("gpu-sidecar"), "gpu"), "vllm")["image"].startswith(
        "vllm/vllm-openai:"
    )
    assert container(pool(render("gpu"), "gpu"), "penstock")["image"].startswith("penstock-gpu:")


def test_a_digest_wins_and_a_pool_may_have_its_own_image(render: Render) -> None:
    """The digest replaces the tag, and a pool's image replaces the kind's field by field."""
    digest = f"sha256:{'a' * 64}"
    release = render(
        "minimal",
        {"image": {"digest": digest}, "workerPools": {"api": {"image": {"repository": "mine"}}}},
    )
    assert container(pool(release, "api"), "penstock")["image"] == f"mine@{digest}"
    assert container(pool(release, "control"), "penstock")["image"] == f"penstock@{digest}"


def test_gpu_pods_reach_gpu_nodes(render: Render) -> None:
    """They tolerate the GPU's taint beside the spot one, have shared memory, and never wait for a
    second GPU to be replaced."""
    manifest = pool(
        render("gpu", {"workerPools": {"gpu": {"gpu": {"runtimeClassName": "nvidia"}}}}), "gpu"
    )
    spec = pod_spec(manifest)
    assert {toleration["key"] for toleration in spec["tolerations"]} == {
        "nvidia.com/gpu",
        "cloud.google.com/gke-spot",
    }
    assert spec["runtimeClassName"] == "nvidia"
    assert manifest["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    shm = next(volume for volume in spec["volumes"] if volume["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}


def test_every_place_for_models(render: Render) -> None:
    """emptyDir, hostPath, the chart's own claim and a user's are what pods mount; a claim outlives
    the release."""
    cases = {
        "emptyDir": ({}, {"emptyDir": {"sizeLimit": "50Gi"}}),
        "hostPath": ({"hostPath": "/mnt/m"}, {"hostPath": {"path": "/mnt/m", "type": "Directory"}}),
        "pvc": ({}, {"persistentVolumeClaim": {"claimName": "fleet-penstock-gpu-models"}}),
        "existingClaim": ({"claimName": "mine"}, {"persistentVolumeClaim": {"claimName": "mine"}}),
    }
    for kind, (more, wanted) in cases.items():
        cache = {"type": kind, **more}
        release = render(
            "gpu",
            {
                "workerPools": {
                    "gpu": {"modelCache": cache, "model": {"prefetch": {"enabled": False}}}
                }
            },
        )
        assert _volumes(release, "gpu")["models"] == {"name": "models", **wanted}
        claims = release.all("PersistentVolumeClaim")
        assert list(claims) == (["fleet-penstock-gpu-models"] if kind == "pvc" else [])
        assert all(
            claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
            for claim in claims.values()
        )


def test_a_pinned_revision_reaches_the_engine(render: Render) -> None:
    """The commit is an argument of vLLM, in both kinds."""
    assert any(
        arg.startswith("--revision=0e9e39f2")
        for arg in container(pool(render("gpu-sidecar"), "gpu"), "vllm")["args"]
    )
    release = render("gpu", {"workerPools": {"gpu": {"model": {"prefetch": {"enabled": False}}}}})
    assert (
        '"revision":"b968826d'
        in env(container(pool(release, "gpu"), "penstock"))["PENSTOCK_GPU__ENGINE"]
    )


def test_what_comes_from_a_bucket_is_cached_with_the_models(render: Render) -> None:
    """A model at s3:// and found adapters reach the worker, and its cache lies on the volume for
    models."""
    asked = {
        "model": {"name": "s3://b/m", "revision": "", "prefetch": {"enabled": False}},
        "vllm": {"loraFrom": "s3://b/l"},
    }
    variables = env(
        container(pool(render("gpu", {"workerPools": {"gpu": asked}}), "gpu"), "penstock")
    )
    assert variables["PENSTOCK_GPU__MODEL"] == "s3://b/m"
    assert variables["PENSTOCK_GPU__LORA_FROM"] == "s3://b/l"
    assert variables["PENSTOCK_GPU__CACHE_DIR"] == f"{Path(variables['HF_HOME']).parent}/penstock"
    plain = env(container(pool(render("gpu"), "gpu"), "penstock"))
    assert not {"PENSTOCK_GPU__LORA_FROM", "PENSTOCK_GPU__CACHE_DIR"} & set(plain)


def test_prefetched_models_need_no_hub(render: Render) -> None:
    """The job fills the folder that pods read, under a name of model and revision; pods ask the hub
    for nothing."""
    release = render("gpu")
    (job,) = (found for name, found in release.all("Job").items() if "fetch" in name)
    (fetch,) = pod_spec(job)["containers"]
    worker = env(container(pool(release, "gpu"), "penstock"))
    assert worker["HF_HUB_OFFLINE"] == "1"
    assert worker["PENSTOCK_GPU__MODEL"] == env(fetch)["FOLDER"]
    assert '"Qwen/Qwen3-8B"' in worker["PENSTOCK_GPU__NAMES"]
    assert "nvidia.com/gpu" not in fetch["resources"]["limits"]


def test_another_prefetch_is_another_job(render: Render) -> None:
    """A Job cannot be changed: a new revision or image gives a new one; the same model keeps its
    folder."""
    one = _prefetch(render, {})
    revised = _prefetch(render, {"workerPools": {"gpu": {"model": {"revision": "f" * 40}}}})
    upgraded = _prefetch(render, {"vllmImage": {"tag": "v0.33.0"}})
    scaled = _prefetch(render, {"workerPools": {"gpu": {"keda": {"maxReplicas": 3}}}})
    assert len({one["name"], revised["name"], upgraded["name"]}) == 3
    assert one["folder"] == upgraded["folder"] != revised["folder"]
    assert scaled == one


def _prefetch(render: Render, changes: Values) -> dict[str, str]:
    (job,) = (found for name, found in render("gpu", changes).all("Job").items() if "fetch" in name)
    return {
        "name": job["metadata"]["name"],
        "folder": env(pod_spec(job)["containers"][0])["FOLDER"],
    }


def test_pods_wait_for_the_model_and_not_for_ever(render: Render, tmp_path: Path) -> None:
    """The rendered script ends well once the mark is there, and badly, with the reason, once its
    time is over."""
    wait = container(pool(render("gpu"), "gpu"), "wait-for-model")
    (script,) = wait["args"]
    mark = tmp_path / "mark"
    late = script.replace("left=7200", "left=0")
    ran = subprocess.run(
        ["sh", "-c", late],
        env={**os.environ, "MARK": str(mark)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, "look at the job fleet-penstock-gpu-fetch-" in ran.stderr) == (1, True)
    mark.touch()
    assert (
        subprocess.run(
            ["sh", "-c", script], env={**os.environ, "MARK": str(mark)}, check=False
        ).returncode
        == 0
    )


def test_a_pools_price_reaches_its_workers(render: Render) -> None:
    """Per card, with the number of cards; on spot nodes the spot price where one is given; nothing
    without a price."""
    priced = {"gpu": {"usdPerHour": 2.5, "spotUsdPerHour": 0.9, "count": 2}}
    assert not [
        name for name in worker_env(render("gpu"), "gpu") if name.startswith("PENSTOCK_COST__")
    ]
    variables = worker_env(
        render("gpu", {"workerPools": {"gpu": {**priced, "spot": False}}}), "gpu"
    )
    assert (variables["PENSTOCK_COST__USD_PER_GPU_HOUR"], variables["PENSTOCK_COST__GPUS"]) == (
        "2.5",
        "2",
    )
    on_spot = render(
        "gpu", {"spot": {"provider": "gke"}, "workerPools": {"gpu": {**priced, "spot": True}}}
    )
    variables = worker_env(on_spot, "gpu")
    assert (variables["PENSTOCK_COST__USD_PER_GPU_HOUR"], variables["PENSTOCK_COST__ON_SPOT"]) == (
        "0.9",
        "true",
    )


def test_embed_pools_get_an_image_that_can_load_encoders(render: Render) -> None:
    """Not the one with vLLM, which has no sentence-transformers (H9)."""
    embed = {"enabled": True, "model": {"name": "/models/encoder"}}
    release = render("minimal", {"workerPools": {"embed": embed}})
    assert container(pool(release, "embed"), "penstock")["image"].startswith("penstock-embed:")
