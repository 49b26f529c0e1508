"""Images as programs of this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubelet.fields import Refused

Local = Callable[[Sequence[str]], list[str]]


@dataclass(frozen=True)
class Image:
    """An entry point, and ``local``: what a command in the image is on this machine."""

    entrypoint: Sequence[str] = ()
    local: Local = list

    def argv(self, container: Mapping[str, Any]) -> list[str]:
        """`command` replaces the entry point, and `args` follow."""
        return self.local([*container.get("command", self.entrypoint), *container.get("args", ())])


def image_of(container: Mapping[str, Any], images: Mapping[str, Image]) -> Image:
    """By repository, whatever the tag. Raises Refused."""
    name = container["image"].partition("@")[0]
    repository, _, tag = name.rpartition(":")
    repository = repository if repository and "/" not in tag else name
    if repository not in images:
        raise Refused(
            f"image {container['image']!r} has no program here: only {', '.join(sorted(images))} "
            "have"
        )
    return images[repository]


def base_environment() -> dict[str, str]:
    """What images bring along: programs, and the sources under test where they are not
    installed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "LANG") if name in os.environ}
    return kept | {"PATH": path, "PYTHONUNBUFFERED": "1"}
