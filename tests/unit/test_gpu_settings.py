"""Settings of gpu workers: merged from file, environment and flags; sizes that follow from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_workers.errors import BadEngineSettings
from penstock_workers.lanes.gpu.gpu_lane import GpuLane
from penstock_workers.settings import WorkerSettings


def test_flags_win_over_the_environment_and_leave_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag replaces its field of `gpu`, and leaves the other engine arguments of the environment."""
    monkeypatch.setenv("PENSTOCK_GPU__MODEL", "/models/one")
    monkeypatch.setenv("PENSTOCK_GPU__ENGINE", '{"dtype": "bfloat16", "tensor_parallel_size": 2}')
    settings = WorkerSettings.load(lane="gpu", gpu={"model": "/models/two", "engine": {"tensor_parallel_size": 4}})
    assert settings.gpu.model == "/models/two"
    assert settings.gpu.engine == {"dtype": "bfloat16", "tensor_parallel_size": 4}


def test_a_settings_file_holds_vllms_arguments_as_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`[gpu.engine]` of penstock.toml reaches vLLM as it is, nested tables too."""
    file = tmp_path / "penstock.toml"
    file.write_text(
        '[gpu]\nmodel = "/models/llama"\nmax_num_seqs = 512\nlora = { legal = "/adapters/legal" }\n'
        "[gpu.engine]\nquantization = 'fp8'\nspeculative_config = { method = 'ngram', num_speculative_tokens = 4 }\n"
    )
    monkeypatch.setenv("PENSTOCK_CONFIG", str(file))
    settings = WorkerSettings.load(lane="gpu")
    assert settings.gpu.lora == {"legal": "/adapters/legal"}
    assert settings.gpu.engine["speculative_config"] == {"method": "ngram", "num_speculative_tokens": 4}
    assert settings.concurrency == 1024


@pytest.mark.parametrize(
    ("flags", "slots"),
    [
        ({"lane": "gpu"}, 512),
        ({"lane": "gpu", "concurrency": 7}, 7),
        ({"lane": "gpu", "gpu": {"max_num_seqs": 16_384}}, 10_000),
        ({"lane": "api"}, 256),
    ],
)
def test_a_gpu_worker_holds_twice_what_its_engine_runs(flags: dict[str, object], slots: int) -> None:
    """Without `-c` a gpu worker's slots are twice `max_num_seqs`, up to the most that there may be."""
    assert WorkerSettings.load(**flags).concurrency == slots


def test_without_a_model_the_worker_says_how_to_name_one() -> None:
    """A gpu worker without a model fails with the setting that names one."""
    with pytest.raises(BadEngineSettings, match=r"set gpu\.model"):
        GpuLane(WorkerSettings.load(lane="gpu"))
