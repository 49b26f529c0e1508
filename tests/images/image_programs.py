"""Containers' commands as commands of this machine: what stands in an image under these names."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from forked import PENSTOCK

ENTRYPOINT = ("tini", "--", "penstock")  # of docker/Dockerfile and docker/Dockerfile.gpu

PROGRAMS: Mapping[str, Sequence[str]] = {
    "penstock": PENSTOCK,
    "penstock-probe": [sys.executable, "-m", "penstock_workers.celery_app.probe"],
    "python": [sys.executable],
    "python3": [sys.executable],
    "celery": [sys.executable, "-m", "celery"],
}


def local(argv: Sequence[str], programs: Mapping[str, Sequence[str]] = PROGRAMS) -> list[str]:
    """Without tini, which hands signals on to its one child: here the child gets them itself."""
    name, *arguments = argv[2:] if argv[:2] == list(ENTRYPOINT[:2]) else argv
    return [*programs.get(name, [name]), *arguments]
