"""What is used of vLLM, by name, looked up in the one that is installed: it is an extra, and heavy
to import."""

from __future__ import annotations

import importlib
from typing import Any

from penstock_workers.errors import BadEngineSettings, PackageMissing


def upstream(module: str, name: str) -> Any:
    """A class of vLLM's.

    Raises PackageMissing where there is no vLLM, BadEngineSettings for one that has no such
    class."""
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name == "vllm":
            raise PackageMissing("gpu", "vLLM", "gpu") from error
        raise _unknown(module, name, error) from error
    except AttributeError as error:
        raise _unknown(module, name, error) from error


def version() -> str:
    return str(upstream("vllm", "__version__"))


def _unknown(module: str, name: str, error: Exception) -> BadEngineSettings:
    return BadEngineSettings(
        f"this vLLM has no {module}.{name} ({error}): install one from 0.26 to 0.33"
    )
