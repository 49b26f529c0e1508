"""What an engine benchmark runs on: the model, the engine's arguments and the sizes.

A GPU differs from a CPU in these only."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson

from benchmarks.harness.ground import ROOT

SERVED_AS = "bench"  # the name that requests use: run-batch and our lane must both know it
KV_GIB = "1"  # of the CPU build, which takes nearly all memory else


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that the processes of a run must agree on; it travels between them as JSON."""

    model: str
    max_num_seqs: int
    max_num_batched_tokens: int
    engine: dict[str, Any]  # further engine arguments, by vLLM's names
    items: int  # of a long run
    short: int  # of a short one: the difference of both has neither start nor end
    rounds: int  # of a short and a long run each
    output_tokens: int

    @property
    def arguments(self) -> dict[str, Any]:
        """For vLLM's own entry points: what the lane is given, and prefix caching, which the lane
        turns on by itself."""
        return self.engine | {
            "model": self.model,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "enable_prefix_caching": True,
        }

    def to_json(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def from_json(cls, text: str) -> Setup:
        return cls(**orjson.loads(text))


def cpu_setup(place: Path, quick: bool) -> Setup:
    return Setup(
        model=str(tiny_model().make_model(place / SERVED_AS)),
        max_num_seqs=128,
        max_num_batched_tokens=2048,
        engine={"dtype": "bfloat16", "enforce_eager": True, "max_model_len": 1024},
        items=400 if quick else 1_000,
        short=100 if quick else 300,
        rounds=3 if quick else 7,
        output_tokens=32,
    )


def gpu_setup(place: Path, quick: bool) -> Setup:
    """The shape of an 8B Llama without its weights: what it says is noise, what it costs is
    real."""
    tiny = tiny_model()
    shape = tiny.Shape(
        hidden=4096,
        inner=14_336,
        layers=32,
        heads=32,
        kv_heads=8,
        head_size=128,
        embedded=128_256,
        context=8192,
        tied=False,
    )
    return Setup(
        model=str(tiny.make_model(place / SERVED_AS, "llama", shape, weights=False)),
        max_num_seqs=1024,
        max_num_batched_tokens=16_384,
        engine={"dtype": "bfloat16", "max_model_len": 4096, "load_format": "dummy"},
        items=4_000 if quick else 40_000,
        short=1_000 if quick else 8_000,
        rounds=3,
        output_tokens=128,
    )


def tiny_model() -> Any:
    return tests_module("engines.tiny_model")


def tests_module(name: str) -> Any:
    """A module that tests use, too."""
    sys.path.insert(0, str(ROOT / "tests"))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(ROOT / "tests"))


def variables(setup: Setup, **more: str) -> dict[str, str]:
    """The environment of every process: nothing is looked up or reported anywhere."""
    quiet = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", KV_GIB),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "PENSTOCK_CONFIG": str(_no_settings(setup)),
    }
    return quiet | more


def _no_settings(setup: Setup) -> Path:
    path = Path(setup.model).parent / "penstock.toml"
    path.touch()
    return path
