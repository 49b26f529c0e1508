"""Finding one's way in rendered manifests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chart.helm_library import Manifest, Release

WITH_TEMPLATES = ("Deployment", "StatefulSet", "Job")


def pod_spec(manifest: Manifest) -> dict[str, Any]:
    spec: dict[str, Any] = manifest["spec"]
    return spec if manifest["kind"] == "Pod" else spec["template"]["spec"]


def pods(release: Release) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and pod spec of everything that runs."""
    for manifest in release.manifests:
        if manifest["kind"] in (*WITH_TEMPLATES, "Pod"):
            yield f"{manifest['kind']}/{manifest['metadata']['name']}", pod_spec(manifest)


def containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def container(manifest: Manifest, name: str) -> dict[str, Any]:
    return next(found for found in containers(pod_spec(manifest)) if found["name"] == name)


def env(found: dict[str, Any]) -> dict[str, Any]:
    """Variables of a container: the value, or where it is from."""
    return {
        entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in found.get("env", [])
    }


def pool(release: Release, name: str) -> Manifest:
    return release.one("Deployment", f"fleet-penstock-{name}")


def worker_env(release: Release, name: str) -> dict[str, Any]:
    return env(container(pool(release, name), "penstock"))
