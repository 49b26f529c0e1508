"""Images as programs of this machine.

An upstream vLLM image is played by `penstock simulate --like vllm` (vllm_standin.py): it answers, drains and reports as
vLLM's server does, and computes nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chart.kubelet.places import Refused
from image_programs import ENTRYPOINT, PROGRAMS, local

STANDIN = Path(__file__).with_name("vllm_standin.py")


@dataclass(frozen=True)
class Image:
    """An entry point, and what its programs are here."""

    entrypoint: Sequence[str] = ()
    programs: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def argv(self, container: Mapping[str, Any]) -> list[str]:
        """`command` replaces the entry point, and `args` follow."""
        return self.here([*container.get("command", self.entrypoint), *container.get("args", ())])

    def here(self, argv: Sequence[str]) -> list[str]:
        return local(argv, self.programs)


IMAGES: Mapping[str, Image] = {
    "penstock": Image(ENTRYPOINT, PROGRAMS),
    "vllm/vllm-openai": Image(("vllm", "serve"), PROGRAMS | {"vllm": [sys.executable, str(STANDIN)]}),
    "redis": Image(("docker-entrypoint.sh",)),
    "busybox": Image(),
}


def image_of(container: Mapping[str, Any], images: Mapping[str, Image]) -> Image:
    """By repository, whatever the tag. Raises Refused."""
    name = container["image"].partition("@")[0]
    repository, _, tag = name.rpartition(":")
    repository = repository if repository and "/" not in tag else name
    if repository not in images:
        raise Refused(f"image {container['image']!r} is none of those that stand in here: {sorted(images)}")
    return images[repository]


def base_environment() -> dict[str, str]:
    """What images bring along: programs, and the sources under test where they are not installed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "LANG") if name in os.environ}
    return kept | {"PATH": path, "PYTHONUNBUFFERED": "1"}
