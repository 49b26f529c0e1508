"""Errors after which a device computes nothing more in this process, whatever it is asked: CUDA's,
ROCm's, NCCL's."""

from __future__ import annotations

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
    """Whether this error, or what it came from, says that the device or its context is lost."""
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
