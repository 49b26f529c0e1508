"""Images that are built and containers that are run, for real, with podman: `make test-images`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from images.compose_file import EXAMPLE, FILES, ROOT, services
from images.podman import PIP_FILES, STANDINS, NoPodman, Podman, Project
from servers import free_port

pytestmark = pytest.mark.images

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
IMAGE = f"penstock:{VERSION}"
GPU_IMAGE, EMBED_IMAGE = f"penstock-gpu:{VERSION}", f"penstock-embed:{VERSION}"

# over its base, 170 of them pyarrow; nothing else in it is large, and nothing large may creep in
MAX_ADDED_MB = 450
HARDENED = ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--tmpfs=/tmp"]
DEMO_S = 300.0

# Said in the worker's container to the simulated provider: every answer takes 40 s from now on.
SLOW_DOWN = """
import urllib.request
urllib.request.urlopen("http://simulate:8399/control", b'{"latency_ms": 40000}')
"""
# Messages that workers hold, over the keys of all lanes.
COUNT_HELD = """
local held = 0
for _, name in ipairs(redis.call('keys', 'unacked*')) do
    if redis.call('type', name).ok == 'hash' then held = held + redis.call('hlen', name) end
end
return held
"""


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """Its storage stays where IMAGES_STORAGE says, for the next run; else it goes with the test."""
    kept = os.environ.get("IMAGES_STORAGE")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("podman")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        podman = Podman(folder)
        podman.provide("python:3.12-slim", "python")
    except NoPodman as error:
        pytest.skip(str(error))
    recipe = ROOT / "docker" / "Dockerfile"
    podman.build(IMAGE, recipe, ROOT, mounted=PIP_FILES, PYTHON_IMAGE="python:3.12-slim")
    yield podman
    if not kept:
        podman.run("system", "reset", "--force", check=False)


def size_mb(podman: Podman, name: str) -> float:
    return float(str(podman.inspect(name)["Size"])) / 1e6


def test_the_image_is_small_and_holds_no_tools(podman: Podman) -> None:
    """uid 10001, tini first, exec form; no torch, no installer beside our packages; little more
    than its base."""
    added = size_mb(podman, IMAGE) - size_mb(podman, "python:3.12-slim")
    print(f"\n{IMAGE}: {size_mb(podman, IMAGE):.0f} MB, {added:.0f} MB over its base")
    assert added < MAX_ADDED_MB
    config = podman.inspect(IMAGE)["Config"]
    assert isinstance(config, dict)
    assert (config["User"], config["Entrypoint"]) == ("10001:10001", ["tini", "--", "penstock"])
    assert config["Labels"]["org.opencontainers.image.version"] == VERSION

    def inside(*argv: str) -> str:
        entry, *rest = argv
        return podman.run(
            "run", "--rm", *HARDENED, f"--entrypoint={entry}", IMAGE, *rest, check=False
        )

    assert inside("id", "-u").strip() == "10001"
    for module in ("torch", "vllm", "pip"):
        assert "ModuleNotFoundError" in inside("/opt/penstock/bin/python", "-c", f"import {module}")
    everything = (
        "import penstock_workers.celery_app.app, penstock_workers.build, kombu.transport.redis, "
        "psycopg, boto3, flower"
    )
    assert inside("/opt/penstock/bin/python", "-c", everything) == ""
    for tool in ("cc", "gcc", "make"):
        assert not inside("sh", "-c", f"command -v {tool}").strip()


@pytest.mark.parametrize("role", ["worker", "control", "migrate", "simulate"])
def test_each_role_is_the_first_argument(podman: Podman, role: str) -> None:
    """With a read-only root, no capability and no user of the host, each command at least explains
    itself."""
    assert f"penstock {role} [OPTIONS]" in podman.run(
        "run", "--rm", *HARDENED, IMAGE, role, "--help"
    )


def test_the_gpu_image_keeps_what_upstream_has(podman: Podman) -> None:
    """Every step of its recipe, over a stand-in for vLLM's image: what is there stays at its
    version, what Penstock needs besides is added, and the lane's command explains itself."""
    podman.build(
        "penstock-test-vllm",
        STANDINS / "vllm.Containerfile",
        STANDINS,
        mounted=PIP_FILES,
        PYTHON_IMAGE="python:3.12-slim",
    )
    podman.build(
        GPU_IMAGE,
        ROOT / "docker" / "Dockerfile.gpu",
        ROOT,
        mounted=PIP_FILES,
        PYTHON_IMAGE="python:3.12-slim",
        VLLM_IMAGE="localhost/penstock-test-vllm",
    )
    before, after = (
        versions(podman, name, "python3") for name in ("localhost/penstock-test-vllm", GPU_IMAGE)
    )
    assert before.items() <= after.items()
    assert {"penstock", "celery", "msgspec"} <= after.keys() - before.keys()
    hardened = [*HARDENED, "--tmpfs=/cache"]
    assert "penstock worker [OPTIONS]" in podman.run(
        "run", "--rm", *hardened, GPU_IMAGE, "worker", "--lane", "gpu", "--help"
    )


def test_the_embed_image_holds_an_encoders_libraries(podman: Podman) -> None:
    """Every step of its recipe, with the usual wheels of torch, and with a read-only root."""
    podman.build(
        EMBED_IMAGE,
        ROOT / "docker" / "Dockerfile.embed",
        ROOT,
        mounted=PIP_FILES,
        layers=False,
        PYTHON_IMAGE="python:3.12-slim",
    )
    print(f"\n{EMBED_IMAGE}: {size_mb(podman, EMBED_IMAGE):.0f} MB")
    hardened = [*HARDENED, "--tmpfs=/cache", "--entrypoint=/opt/penstock/bin/python"]
    loaded = "import sentence_transformers, torch; print(torch.ones(2).sum().item())"
    said = podman.run("run", "--rm", *hardened, EMBED_IMAGE, "-c", loaded)
    assert said.split()[-1] == "2.0"
    assert "ModuleNotFoundError" in podman.run(
        "run", "--rm", *hardened, EMBED_IMAGE, "-c", "import pip", check=False
    )


def versions(podman: Podman, image: str, python: str) -> dict[str, str]:
    """Return the packages of an image by name."""
    listed = podman.run(
        "run", "--rm", f"--entrypoint={python}", image, "-m", "pip", "list", "--format=json"
    )
    found = json.loads(next(line for line in listed.splitlines() if line.startswith("[")))
    return {one["name"]: one["version"] for one in found}


@pytest.fixture
def project(podman: Podman, tmp_path: Path) -> Project:
    """The repository's compose file in a folder of its own, as a user has it, on ports that are
    free."""
    for one in services(FILES[0]).values():
        name = one.fields["image"]
        if not one.is_ours and not one.profiles:
            podman.provide(name, one.name)
    shutil.copy(FILES[0], tmp_path)
    for folder in ("docker", "examples"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "data").mkdir()
    ports = f"REDIS_PORT={free_port()}\nPOSTGRES_PORT={free_port()}\n"
    shutil.copy(EXAMPLE, tmp_path)
    subprocess.run([sys.executable, "docker/passwords.py"], cwd=tmp_path, check=True)
    with (tmp_path / ".env").open("a") as file:
        file.write(ports + "DEMO_DOCS=100\n")
    return Project(podman, tmp_path, f"pt{os.getpid()}")


def test_the_demo_ends_and_a_worker_is_stopped_without_loss(
    podman: Podman, project: Project
) -> None:
    """`docker compose --profile demo up`: the job finishes without a key.

    Then a worker is stopped with calls in flight:

    its container exits 0 within its grace, and nothing that it held is left in Redis.
    """
    servers, schema, fleet = (
        ("redis", "postgres", "simulate"),
        ("migrate",),
        ("control", "worker-api", "demo"),
    )
    with project.up(servers, schema, fleet, profile="demo"):
        assert project.exit_status("demo", DEMO_S) == 0, project.logs("demo")
        print("\n" + project.logs("demo"))
        assert "the job is completed" in project.logs("demo")

        project.compose("exec", "-T", "worker-api", "/opt/penstock/bin/python", "-c", SLOW_DOWN)
        podman.run("start", project.container("demo"))
        deadline = time.monotonic() + 120
        while held(project) == 0:
            assert time.monotonic() < deadline, "no worker has taken anything"
            time.sleep(0.2)

        worker, began = project.container("worker-api"), time.monotonic()
        project.compose("stop", "--timeout", "45", "worker-api")
        took = time.monotonic() - began
        assert project.exit_status("worker-api", 5) == 0, podman.run("logs", worker, check=False)[
            -3_000:
        ]
        print(f"podman stop of a worker with calls of 40 s in flight: exit 0 after {took:.1f} s")
        assert held(project) == 0


def held(project: Project) -> int:
    return int(
        project.compose(
            "exec", "-T", "redis", "redis-cli", "--raw", "EVAL", COUNT_HELD, "0"
        ).split()[-1]
    )
