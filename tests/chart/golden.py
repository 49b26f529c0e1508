"""Whole renders of four examples, kept in git: a change of a template shows in its review as a change of manifests."""

from __future__ import annotations

from pathlib import Path

import yaml
from chart.helm_library import Release

FOLDER = Path(__file__).parent / "golden"
EXAMPLES = ("minimal", "karpenter", "gpu", "gpu-sidecar")


def path(name: str) -> Path:
    return FOLDER / f"{name}.yaml"


def text(release: Release) -> str:
    """Manifests by kind and name. Passwords are made anew at each render, so Secrets show their keys only."""
    manifests = sorted(release.manifests, key=lambda manifest: (manifest["kind"], manifest["metadata"]["name"]))
    shown = [
        manifest | {"stringData": dict.fromkeys(manifest["stringData"], "…")}
        if manifest["kind"] == "Secret"
        else manifest
        for manifest in manifests
    ]
    return yaml.dump_all(shown, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True, width=120)
