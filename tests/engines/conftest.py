"""Real engines on the CPU.

`make test-vllm` has what they need; anywhere else these tests are not collected into a run."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from engines.tiny_model import Architecture, Shape, make_model

# Before anything of vLLM is imported, and for the processes that tests start.
os.environ.update(
    VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="1"
)
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/engines/"):
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny generative model."""
    return _made(tmp_path_factory, "llama")


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny encoder."""
    return _made(tmp_path_factory, "bert")


@pytest.fixture(scope="session")
def tiny_ranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny cross-encoder."""
    return _made(tmp_path_factory, "bert-classifier")


@pytest.fixture(scope="session")
def tiny_seer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model that sees images."""
    return _made(tmp_path_factory, "idefics3")


@pytest.fixture(scope="session")
def tiny_hearer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model that hears."""
    return _made(tmp_path_factory, "qwen2-audio")


def _made(tmp_path_factory: pytest.TempPathFactory, kind: Architecture) -> Path:
    if importlib.util.find_spec("vllm") is None:
        pytest.fail("vLLM is not installed here; `make test-vllm` sets it up", pytrace=False)
    shape = Shape(context=512) if kind.startswith("bert") else Shape()
    return make_model(tmp_path_factory.mktemp("models") / f"tiny-{kind}", kind, shape)
