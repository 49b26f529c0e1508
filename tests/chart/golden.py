"""One whole render, of the smallest installation, kept in git: a change of a template shows in its
review as one of manifests.

It holds the stores, two pools and their policies. What else the chart can emit is held by
assertions: test_rendered_values.py and the tests of each subject.
"""

from __future__ import annotations

from pathlib import Path

import yaml
from chart.helm_library import Release

EXAMPLE = "minimal"
PATH = Path(__file__).parent / "golden" / f"{EXAMPLE}.yaml"


def text(release: Release) -> str:
    """Manifests by kind and name.

    Passwords are made anew at each render, so Secrets show their keys only."""
    manifests = sorted(
        release.manifests, key=lambda manifest: (manifest["kind"], manifest["metadata"]["name"])
    )
    shown = [
        manifest | {"stringData": dict.fromkeys(manifest["stringData"], "…")}
        if manifest["kind"] == "Secret"
        else manifest
        for manifest in manifests
    ]
    dumped: str = yaml.dump_all(
        shown, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True, width=120
    )
    return dumped
