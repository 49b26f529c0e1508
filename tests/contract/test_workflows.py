"""The files of .github/workflows run targets of make that work on any machine, with no more rights than that
takes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github/workflows").glob("*"))
USES = re.compile(r"^\s*(?:- )?uses: (\S+?)@(\S+)(?: # (\S+))?$", re.MULTILINE)
RUN = re.compile(r"make (\S+)((?: [A-Z]+=(?:[\w.-]+|\"\$GITHUB_REF_NAME\"))*)")
# Rights to write, and the only jobs that have them.
MAY_WRITE = {
    ("docs.yml", "online"): {"pages": "write", "id-token": "write"},
    ("images.yml", "push"): {"contents": "read", "packages": "write"},
    ("release.yml", "publish"): {"id-token": "write"},
}
# Events whose workflows run with the rights of the repository on what strangers wrote.
DANGEROUS = {"pull_request_target", "workflow_run", "issue_comment", "issues"}


def workflow(path: Path) -> dict[str, Any]:
    read: dict[Any, Any] = yaml.safe_load(path.read_text("utf-8"))
    read["on"] = read.pop(True)  # as YAML 1.1 reads `on`
    return read


def jobs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path in FILES:
        for name, job in workflow(path)["jobs"].items():
            yield path.name, name, job


def targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    return set(re.findall(r"^([a-z-]+):.*?## ", makefile, re.MULTILINE))


def asked(job: dict[str, Any], step: str) -> Iterator[str]:
    """The targets that a step makes, with each value of the matrix in its place."""
    matrix = job.get("strategy", {}).get("matrix", {})
    values = {name: each for name, each in matrix.items() if f"matrix.{name} " in step}
    for name, each in values.items():
        yield from (step.replace(f"${{{{ matrix.{name} }}}}", str(value)) for value in each)
    if not values:
        yield step


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_workflow_reads_only_and_replaces_its_own_runs(path: Path) -> None:
    """It is read-only unless a job says otherwise, has a group for its runs, and is not begun by an
    event that gives a stranger's code the repository's rights."""
    assert path.suffix == ".yml"
    found = workflow(path)
    assert found["permissions"] == {"contents": "read"}
    assert found["concurrency"]["group"]
    assert not DANGEROUS & set(found["on"])


def test_rights_to_write_are_where_they_are_needed() -> None:
    """Publishing and the site have theirs, each after an approval of its environment."""
    found = {(file, name): job["permissions"] for file, name, job in jobs() if "permissions" in job}
    assert found == MAY_WRITE
    for file, name, job in jobs():
        assert ("environment" in job) == ((file, name) in MAY_WRITE), (file, name)


def test_every_step_is_a_target_of_make_or_a_pinned_action() -> None:
    """What CI does can be done here. No step has code of its own, and none puts what a stranger
    named into a shell."""
    known = targets()
    assert len(known) > 20
    for file, name, job in jobs():
        assert job["timeout-minutes"] <= 180, (file, name)
        assert re.fullmatch(r"ubuntu-\d\d\.\d\d", job["runs-on"]), (file, name)
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step), (file, name, step)
            for line in asked(job, step.get("run", "make help")):
                made = RUN.fullmatch(line)
                assert made is not None, (file, name, line)
                assert made[1] in known, (file, name, line)


def test_actions_are_pinned_by_digest_and_keep_no_credentials() -> None:
    """One digest for each action in all files, with its version beside it for people and for the
    program that renews it."""
    pins: dict[str, set[tuple[str, str]]] = {}
    for path in FILES:
        for action, digest, version in USES.findall(path.read_text("utf-8")):
            pins.setdefault(action, set()).add((digest, version))
    assert len(pins) >= 8
    for action, found in pins.items():
        ((digest, version),) = found
        assert re.fullmatch(r"[0-9a-f]{40}", digest), action
        assert re.fullmatch(r"v\d+\.\d+\.\d+", version), action
    for file, name, job in jobs():
        for step in job["steps"]:
            if str(step.get("uses", "")).startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, (file, name)


def test_tests_run_on_every_python_that_is_promised() -> None:
    """The matrix, the classifiers and the lowest version of pyproject.toml name the same ones."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = [
        one.rpartition(" :: ")[2]
        for one in project["classifiers"]
        if re.search(r":: Python :: 3\.\d+$", one)
    ]
    matrix = workflow(ROOT / ".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == named
    assert project["requires-python"] == f">={named[0]}"


def test_updates_are_asked_for_everything_that_is_pinned() -> None:
    """Actions, Python packages, images and the packages of a test in JavaScript."""
    read = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text("utf-8"))
    found = {one["package-ecosystem"]: one["directory"] for one in read["updates"]}
    assert set(found) == {"github-actions", "pip", "docker", "npm"}
    assert all((ROOT / place.lstrip("/")).is_dir() for place in found.values())


@pytest.mark.parametrize("path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")))
def test_forms_have_what_the_page_of_issues_needs(path: Path) -> None:
    """A form has a name, a description, and fields whose ids differ; that of bugs asks for the
    doctor's report."""
    read = yaml.safe_load(path.read_text("utf-8"))
    if path.name == "config.yml":
        assert read == {"blank_issues_enabled": False}
        return
    assert read["name"]
    assert read["description"]
    ids = [one["id"] for one in read["body"] if one["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 1
    if path.name == "bug.yml":
        assert "penstock doctor --report" in path.read_text("utf-8")
