"""The images that the chart names, as programs of this machine.

An upstream vLLM image is played by `penstock simulate --like vllm` (vllm_standin.py): it answers,
drains and reports as vLLM's server does, and computes nothing. Redis and PostgreSQL are the servers
that tests start (store_standin.py).
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import servers
from images.image_programs import ENTRYPOINT, PROGRAMS, local
from kubelet import Image

STANDIN = Path(__file__).with_name("vllm_standin.py")
HARNESS = Path(servers.__file__).parent
STORES = [
    *("env", f"PYTHONPATH={HARNESS}", sys.executable),
    str(Path(__file__).with_name("store_standin.py")),
]
STORE_PROGRAMS = re.compile(
    r"(?<![\w/-])(redis-server|redis-cli|docker-entrypoint\.sh|pg_isready)\b"
)


def _store(argv: Sequence[str]) -> list[str]:
    """A program by its name, or a script of the shell that names some."""
    if argv[0] == "sh":
        return [*argv[:-1], STORE_PROGRAMS.sub(rf"{shlex.join(STORES)} \1", argv[-1])]
    return [*STORES, *argv]


IMAGES: Mapping[str, Image] = {
    "penstock": Image(ENTRYPOINT, local),
    "redis": Image(local=_store),
    "postgres": Image(("docker-entrypoint.sh", "postgres"), _store),
    "vllm/vllm-openai": Image(
        ("vllm", "serve"),
        partial(local, programs={**PROGRAMS, "vllm": [sys.executable, str(STANDIN)]}),
    ),
}
