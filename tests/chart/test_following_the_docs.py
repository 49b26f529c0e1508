"""What a stranger types: every helm command of the documentation renders, and finds the images and
Secrets that it needs."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from functools import reduce
from itertools import pairwise
from typing import Any

import pytest
import yaml
from chart import helm_library
from chart.conftest import CHART, EXAMPLES, ROOT, Render, example, overlay
from chart.helm_library import Values
from chart.pods import containers, pods

DOCS = {
    name: (ROOT / name).read_text("utf-8")
    for name in ("docs/fleet.md", "docs/kubernetes.md", "helm/penstock/README.md")
}
OWN = "fleet.yaml"  # the reader's own values, as docs/kubernetes.md shows them
UPSTREAM = ("vllm/vllm-openai:", "redis:", "postgres:")


def commands(text: str, beginning: str) -> list[list[str]]:
    """Commands of a document that begin so, as words; those that go on in the next line are
    joined."""
    joined = re.sub(r"\\\n\s*", " ", text)
    found = re.findall(rf"(?:^\$ |`)({beginning}[^`\n]*)", joined, re.MULTILINE)
    return [shlex.split(command, comments=True) for command in found]


HELM = [
    (name, words)
    for name, text in DOCS.items()
    for words in commands(text, "helm (?:install|upgrade) .*")
]
OF_THE_CHART = [(name, words) for name, words in HELM if "./helm/penstock" in words]


def options(words: list[str], option: str) -> Iterator[str]:
    return (value for flag, value in pairwise(words) if flag == option)


def given(words: list[str]) -> Values:
    """The values of a command, from its files, its `--set` and its `--set-json`, in Helm's
    order."""
    files = [
        _own() if name == OWN else yaml.safe_load((ROOT / name).read_text())
        for name in options(words, "-f")
    ]
    before = [example("minimal"), _own()] if "--reuse-values" in words else []
    after = [*map(_set, options(words, "--set")), *map(_set, options(words, "--set-json"))]
    return reduce(overlay, [*before, *files, *after, {"checkClusterApis": False}])


def _own() -> Values:
    (block,) = (
        text
        for text in re.findall(r"```yaml\n(.*?)```", DOCS["docs/kubernetes.md"], re.DOTALL)
        if "gpuImage" in text
    )
    values: Values = yaml.safe_load(block)
    return values


def _set(pair: str) -> Values:
    path, _, value = pair.partition("=")
    return reduce(lambda inner, key: {key: inner}, reversed(path.split(".")), yaml.safe_load(value))


@pytest.mark.parametrize(
    ("name", "words"), OF_THE_CHART, ids=[" ".join(words) for _, words in OF_THE_CHART]
)
def test_a_command_as_it_stands_there(name: str, words: list[str]) -> None:
    """It renders, and no pod asks a registry for an image of Penstock that was never pushed
    there."""
    release = helm_library.render(CHART, given(words))
    images = {found["image"] for _, spec in pods(release) for found in containers(spec)}
    assert all(image.startswith(("registry.example.com/", *UPSTREAM)) for image in images), images


def test_all_commands_are_followed() -> None:
    """The list above is not empty by accident: a look, production, four clouds and a GPU."""
    assert len(OF_THE_CHART) >= 8
    assert {name for name, _ in OF_THE_CHART} == set(DOCS)


def _made() -> dict[str, set[str]]:
    """Secrets that docs/kubernetes.md has its reader make, and their keys."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for words in commands(DOCS["docs/kubernetes.md"], "kubectl .*create secret generic "):
        keys = (
            word.removeprefix("--from-literal=").partition("=")[0]
            for word in words
            if "--from-literal" in word
        )
        found[words[words.index("generic") + 1]].update(keys)
    return found


def _asked_for(manifest: Any) -> Iterator[tuple[str, str]]:
    """Every Secret's name and key that a manifest refers to, wherever it does."""
    if isinstance(manifest, dict):
        if {"name", "key"} <= manifest.keys():
            yield manifest["name"], manifest["key"]
        for value in manifest.values():
            yield from _asked_for(value)
    elif isinstance(manifest, list):
        for value in manifest:
            yield from _asked_for(value)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_secret_is_one_that_the_reader_has_made(name: str, render: Render) -> None:
    """A Secret or a key that is missing keeps pods from starting, and KEDA from scaling: the chart
    makes it, or the docs do."""
    release = render(name)
    known = _made() | {
        secret: set(manifest["stringData"]) for secret, manifest in release.all("Secret").items()
    }
    asked = {pair for manifest in release.manifests for pair in _asked_for(manifest)}
    assert asked
    assert (
        sorted((secret, key) for secret, key in asked if key not in known.get(secret, set())) == []
    )


def test_a_test_that_succeeded_still_has_its_logs(render: Render) -> None:
    """`helm test --logs`, as documented, asks for the pod's logs after the hook is over: the pod is
    still there then."""
    assert any("--logs" in words for words in commands(DOCS["docs/kubernetes.md"], "helm test "))
    annotations = render("minimal").one("Pod")["metadata"]["annotations"]
    assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation"
