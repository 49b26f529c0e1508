"""Tells when an engine cannot be used any more.

Its device is lost, it fails at everything, or it hangs. After some errors of CUDA, ROCm or NCCL a
device computes nothing more in this process, whatever it is asked. An engine that fails every
request takes itself out: after a run of failures it is asked for what any engine can do. An engine
hangs if one step takes longer than it may: nothing else tells a dead NCCL or a stopped process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

# As torch 2.8 to 2.14, vLLM and NCCL say it. Memory that is too small for one batch is none of
# them: a smaller one may fit.
_LOST: Final = (
    "CUDA error",
    "CUDA driver error",
    "HIP error",
    "NCCL error",
    "NCCL Error",
    "CUDNN_STATUS_EXECUTION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "CUDNN_STATUS_MAPPING_ERROR",
    "CUBLAS_STATUS_EXECUTION_FAILED",
    "CUBLAS_STATUS_INTERNAL_ERROR",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "device-side assert",
    "illegal memory access",
    "unspecified launch failure",
    "no kernel image is available",
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
)
_TOO_LARGE: Final = ("CUDA out of memory", "CUDA error: out of memory", "HIP out of memory")


def is_lost(error: BaseException) -> bool:
    """Return whether this error, or one that it came from, says that the device is lost.

    Its context counts as the device."""
    seen: BaseException | None = error
    for _ in range(8):  # a chain is short; one that goes in a circle is not
        if seen is None:
            return False
        if says_lost(f"{type(seen).__name__}: {seen}"):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def says_lost(text: str) -> bool:
    if any(words in text for words in _TOO_LARGE):
        return False
    return any(words in text for words in _LOST)


# failures without one answer between them; documents that fail by themselves come in runs, too
IN_A_ROW: Final = 32


class FailureRun:
    """Counts failures in a row.

    The one who asks the probe decides by it: requests alone could talk a good engine to death."""

    def __init__(self, in_a_row: int = IN_A_ROW) -> None:
        self._in_a_row = in_a_row
        self._failures = 0

    def answered(self) -> None:
        self._failures = 0

    def failed(self) -> bool:
        """Count a failure, and return True when it is time to probe the engine.

        The count then begins anew."""
        self._failures += 1
        if self._failures < self._in_a_row:
            return False
        self._failures = 0
        return True


LEAST_S: Final = 20.0  # of a GPU: with a look every LOOK_S, a hang is found within 30 s
# others use the same cores, and kernels are compiled on them as they are first needed
LEAST_CPU_S: Final = 120.0
COMPILING_S: Final = 600.0  # a step during which a compiler runs in the engine may take so long
LOOK_S: Final = 2.0
MOST_S: Final = 3600.0
FIRST_STEP_S: Final = 120.0  # kernels are compiled and tuned in the first one
# Floating point operations per second of the slowest machine with which a model of the size is
# served.
SLOW_GPU: Final = 2e13
SLOW_CPU: Final = 1e10


def longest_step_s(parameters: float, tokens: int, *, on_cpu: bool) -> float:
    """Return how many seconds one step may take.

    It reckons with two operations for each pair of a parameter and a token."""
    least_s, per_second = (LEAST_CPU_S, SLOW_CPU) if on_cpu else (LEAST_S, SLOW_GPU)
    return min(MOST_S, least_s + 2.0 * parameters * tokens / per_second)


class StepWatch:
    """The watch over the steps of an engine that has requests. On one event loop."""

    def __init__(self, stall_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._stall_s, self._clock = stall_s, clock
        self._inside = 0
        self._since = 0.0  # when the engine last had nothing to do, or the first request came
        self._stepped: dict[int, float] = {}  # when each engine of the group last reported
        self._busy: set[int] = set()  # those that had requests then

    def entered(self) -> None:
        if self._inside == 0:
            self._since = self._clock()
        self._inside += 1

    def left(self) -> None:
        self._inside -= 1

    def stepped(self, engine: int, *, busy: bool) -> None:
        self._stepped[engine] = self._clock()
        if busy:
            self._busy.add(engine)
        else:
            self._busy.discard(engine)

    def silent_s(self) -> float:
        """Return how long the engine has made no step while there were requests inside; else 0."""
        if not self._inside:
            return 0.0
        latest = max(self._stepped.values(), default=self._since)
        slowest = min((self._stepped[engine] for engine in self._busy), default=latest)
        return self._clock() - max(self._since, slowest)

    def hangs(self) -> str | None:
        """Say that the engine hangs.

        It does once requests have been inside for longer than a step may take, and none was made.
        """
        silent_s = self.silent_s()
        if silent_s <= (self._stall_s if self._stepped else max(self._stall_s, FIRST_STEP_S)):
            return None
        return f"it has made no step for {silent_s:.0f} s with {self._inside} requests in it"
