"""Helm, behind one door.

The library from PyPI holds Helm's own code; a `helm` binary could stand in for this module
alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import helm_python
import yaml

RELEASE, NAMESPACE = "fleet", "penstock"
NOTES = "NOTES.txt"

Values = dict[str, Any]
Manifest = dict[str, Any]


class Refused(Exception):
    """Helm says no: the schema, a validation, a template, or the cluster."""


@dataclass
class Release:
    """What one `helm template` gives: manifests by template, and the notes."""

    texts: dict[str, str]

    @property
    def notes(self) -> str:
        return next(text for path, text in self.texts.items() if path.endswith(NOTES))

    @cached_property
    def manifests(self) -> list[Manifest]:
        return [
            manifest
            for path, text in sorted(self.texts.items())
            if not path.endswith(NOTES)
            for manifest in yaml.load_all(text, yaml.CSafeLoader)
            if manifest
        ]

    def all(self, kind: str) -> dict[str, Manifest]:
        """The manifests of a kind, by name."""
        return {
            manifest["metadata"]["name"]: manifest
            for manifest in self.manifests
            if manifest["kind"] == kind
        }

    def one(self, kind: str, name: str | None = None) -> Manifest:
        found = self.all(kind)
        if name is not None:
            return found[name]
        assert len(found) == 1, f"{kind}: {sorted(found)}"
        return next(iter(found.values()))


def render(chart: Path, values: Values) -> Release:
    """Raises Refused."""
    with helm_python.Chart.load(chart) as loaded, _refusals():
        loaded.validate_schema(values)
        texts = loaded.render(values, name=RELEASE, namespace=NAMESPACE)
    return Release(texts)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except helm_python.HelmError as error:
        raise Refused(str(error)) from None


class Helm:
    """The release of one namespace of a cluster, by Helm 4. Every method raises Refused."""

    TIMEOUT_S = 300  # Helm's own

    def __init__(self, kubeconfig: Path, namespace: str, chart: Path) -> None:
        self._config = helm_python.Config(kubeconfig_path=kubeconfig, namespace=namespace)
        self._namespace = namespace
        self._chart = chart

    def install(self, values: Values) -> None:
        """`helm install --wait`."""
        with _refusals():
            self._config.install(
                self._chart,
                RELEASE,
                values,
                namespace=self._namespace,
                wait="watcher",
                timeout=self.TIMEOUT_S,
            )

    def upgrade(self, values: Values) -> None:
        """`helm upgrade --wait`, by these values alone."""
        with _refusals():
            self._config.upgrade(
                self._chart,
                RELEASE,
                values,
                namespace=self._namespace,
                wait="watcher",
                timeout=self.TIMEOUT_S,
            )

    def rollback(self, revision: int) -> None:
        """`helm rollback --wait`."""
        with _refusals():
            self._config.rollback(RELEASE, version=revision, wait="watcher", timeout=self.TIMEOUT_S)

    def test(self) -> None:
        """`helm test`."""
        with _refusals():
            self._config.test(RELEASE, timeout=self.TIMEOUT_S)

    def uninstall(self) -> None:
        """`helm uninstall`."""
        with _refusals():
            self._config.uninstall(RELEASE, timeout=self.TIMEOUT_S)

    def revisions(self) -> list[str]:
        """What became of each revision, oldest first; none where nothing was installed."""
        try:
            return [one["status"] for one in self._config.history(RELEASE)]
        except helm_python.HelmNotFoundError:
            return []


def package(chart: Path, folder: Path) -> str:
    """The archive that `helm package` makes. Raises Refused."""
    with _refusals():
        return helm_python.package(chart, destination=folder)


def lint(chart: Path, values: Values, kube_version: str) -> list[str]:
    """What `helm lint --strict` finds; nothing is best."""
    report = helm_python.lint(chart, values, strict=True, kube_version=kube_version)
    return [
        *report["errors"],
        *(message["error"] for message in report["messages"] if message["severity"] > 1),
    ]
