"""How busy the GPU was, as nvidia-smi says, sampled while something runs."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

EVERY_MS = 500


@dataclass
class GpuUse:
    """Percent of time in which a kernel ran, one figure per sample.

    Written by the sampler's thread; read afterwards."""

    samples: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        if not self.samples:
            return "GPU use not sampled"
        return f"GPU use {sum(self.samples) / len(self.samples):.0f} %"


@contextlib.contextmanager
def gpu_use() -> Iterator[GpuUse]:
    """Empty where there is no nvidia-smi."""
    use = GpuUse()
    if shutil.which("nvidia-smi") is None:
        yield use
        return
    command = [
        "nvidia-smi",
        "--query-gpu=utilization.gpu",
        "--format=csv,noheader,nounits",
        "-lms",
        str(EVERY_MS),
    ]
    sampler = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    reader = threading.Thread(target=_read, args=(sampler, use), daemon=True)
    reader.start()
    try:
        yield use
    finally:
        sampler.terminate()
        sampler.wait()
        reader.join()


def _read(sampler: subprocess.Popen[str], use: GpuUse) -> None:
    assert sampler.stdout is not None
    for line in sampler.stdout:
        with contextlib.suppress(ValueError):
            use.samples.append(float(line))
