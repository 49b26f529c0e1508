"""Settings of gpu workers: merged from file, environment and flags; sizes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock_workers.errors import BadEngineSettings
from penstock_workers.lanes.gpu.engine import vllm_calls
from penstock_workers.lanes.gpu.engine.adapters import Adapters
from penstock_workers.lanes.gpu.gpu_lane import GpuLane
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.settings import WorkerSettings


def test_flags_win_over_the_environment_and_leave_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag replaces its field of `gpu`, and leaves the other engine arguments of the
    environment."""
    monkeypatch.setenv("PENSTOCK_GPU__MODEL", "/models/one")
    monkeypatch.setenv("PENSTOCK_GPU__ENGINE", '{"dtype": "bfloat16", "tensor_parallel_size": 2}')
    settings = WorkerSettings.load(
        lane="gpu", gpu={"model": "/models/two", "engine": {"tensor_parallel_size": 4}}
    )
    assert settings.gpu.model == "/models/two"
    assert settings.gpu.engine == {"dtype": "bfloat16", "tensor_parallel_size": 4}


def test_a_settings_file_holds_vllms_arguments_as_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`[gpu.engine]` of penstock.toml reaches vLLM as it is, nested tables too."""
    file = tmp_path / "penstock.toml"
    file.write_text(
        '[gpu]\nmodel = "/models/llama"\nmax_num_seqs = 512\nlora = { legal = "/adapters/legal" }\n'
        "[gpu.engine]\nquantization = 'fp8'\nspeculative_config = { method = 'ngram', "
        "num_speculative_tokens = 4 }\n"
    )
    monkeypatch.setenv("PENSTOCK_CONFIG", str(file))
    settings = WorkerSettings.load(lane="gpu")
    assert settings.gpu.lora == {"legal": "/adapters/legal"}
    assert settings.gpu.engine["speculative_config"] == {
        "method": "ngram",
        "num_speculative_tokens": 4,
    }
    assert settings.concurrency == 1024


@pytest.mark.parametrize(
    ("flags", "slots"),
    [
        ({"lane": "gpu"}, 512),
        ({"lane": "gpu", "concurrency": 7}, 7),
        ({"lane": "gpu", "gpu": {"max_num_seqs": 16_384}}, 10_000),
        ({"lane": "gpu", "gpu": {"engine": {"data_parallel_size": 4}}}, 2048),
        (
            {
                "lane": "gpu",
                "gpu": {
                    "max_num_seqs": 8,
                    "engine": {"max_num_seqs": "100", "data_parallel_size": "2"},
                },
            },
            400,
        ),
        ({"lane": "api"}, 256),
    ],
)
def test_a_gpu_worker_holds_twice_what_its_engine_runs(
    flags: dict[str, object], slots: int
) -> None:
    """Without `-c` a gpu worker's slots are twice `max_num_seqs` of all its replicas, up to the
    most that there may be."""
    assert WorkerSettings.load(**flags).concurrency == slots


def test_without_a_model_the_worker_says_how_to_name_one() -> None:
    """A gpu worker without a model fails with the setting that names one."""
    with pytest.raises(BadEngineSettings, match=r"set gpu\.model"):
        GpuLane(WorkerSettings.load(lane="gpu"))


@dataclass
class PlayedArguments:
    """The arguments of a vLLM, as far as they matter here: None is what it then chooses itself."""

    model: str = ""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    scheduling_policy: str = "fcfs"


@pytest.mark.parametrize(
    ("gpu", "sizes"),
    [
        ({}, (None, None)),
        ({"max_num_seqs": 64}, (64, None)),
        (
            {"max_num_seqs": 64, "engine": {"max_num_seqs": 32, "max_num_batched_tokens": 4096}},
            (32, 4096),
        ),
    ],
)
def test_sizes_are_vllms_own_unless_they_are_given(
    gpu: dict[str, Any], sizes: tuple[int | None, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a setting vLLM chooses its batch sizes for the card; with one it gets that, and its
    own arguments win."""
    monkeypatch.setattr(vllm_calls, "upstream", lambda _module, _name: PlayedArguments)
    settings = GpuSettings(model="m", **gpu)
    made = vllm_calls.engine_arguments(settings, Adapters({}, "m"), drain_seconds=1)
    assert (made.max_num_seqs, made.max_num_batched_tokens) == sizes
    assert made.scheduling_policy == "priority"
