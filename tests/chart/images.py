"""The images that the chart names, as programs of this machine.

An upstream vLLM image is played by `penstock simulate --like vllm` (vllm_standin.py): it answers,
drains and reports as vLLM's server does, and computes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from images.image_programs import ENTRYPOINT, PROGRAMS, local
from kubelet import Image

STANDIN = Path(__file__).with_name("vllm_standin.py")

IMAGES: Mapping[str, Image] = {
    "penstock": Image(ENTRYPOINT, local),
    "vllm/vllm-openai": Image(
        ("vllm", "serve"),
        partial(local, programs={**PROGRAMS, "vllm": [sys.executable, str(STANDIN)]}),
    ),
}
