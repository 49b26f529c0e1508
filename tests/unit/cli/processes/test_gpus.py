"""Which cards `--gpus` means, from played lists of cards."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock_cli.commands import worker as command
from penstock_cli.errors import UsageProblem
from penstock_cli.processes.gpu_workers import (
    Cards,
    GpuWorkers,
    Visible,
    cards_asked,
    check_ports,
    groups,
)
from penstock_cli.run.fleet import Fleet
from penstock_cli.state import StateFolder
from penstock_ledger.in_redis.batches import WorkerSeen
from penstock_producer.reporting.engines import gpus_in_words
from penstock_workers.lanes.devices import VARIABLES, Device, GpusSeen, gpus_seen, read_list
from penstock_workers.settings import WorkerSettings

LISTED = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa1111-0000-0000-0000-000000000000)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb2222-0000-0000-0000-000000000000)
GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-cccc3333-0000-0000-0000-000000000000)
GPU 3: NVIDIA H100 80GB HBM3 (UUID: GPU-dddd4444-0000-0000-0000-000000000000)
"""
DIVIDED = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa1111-0000-0000-0000-000000000000)
  MIG 3g.20gb     Device  0: (UUID: MIG-11111111-aaaa-0000-0000-000000000000)
  MIG 3g.20gb     Device  1: (UUID: MIG-22222222-aaaa-0000-0000-000000000000)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bbbb2222-0000-0000-0000-000000000000)
"""
FOUR = GpusSeen("nvidia", read_list(LISTED), "nvidia-smi lists 4")


def visible(
    asked: str, seen: GpusSeen = FOUR, given: str | None = None, each: int = 1
) -> list[str]:
    inherited = None if given is None else Visible("CUDA_VISIBLE_DEVICES", given)
    return [group.visible for group in groups(asked, seen, inherited, each)]


@pytest.mark.parametrize(
    ("asked", "each", "wanted"),
    [
        ("all", 1, ["0", "1", "2", "3"]),
        ("2", 1, ["0", "1"]),
        ("1,3", 1, ["1", "3"]),
        ("0,", 1, ["0"]),
        ("all", 2, ["0,1", "2,3"]),
        ("3,1,0,2", 2, ["3,1", "0,2"]),
        ("GPU-cccc3333-0000-0000-0000-000000000000,0", 1, ["2", "0"]),
    ],
)
def test_cards_are_chosen(asked: str, each: int, wanted: list[str]) -> None:
    """All, a number of them, or a list; in groups of as many as one engine uses, in the order that
    was given."""
    assert visible(asked, each=each) == wanted


def test_an_inherited_list_bounds_what_may_be_used() -> None:
    """What CUDA_VISIBLE_DEVICES leaves is what there is: numbers count in it, and its own names are
    passed on."""
    assert visible("all", given="3,1") == ["3", "1"]
    assert visible("0,", given="2,1") == ["2"]
    assert visible("all", given="GPU-bbbb2222,0", each=2) == ["GPU-bbbb2222,0"]


def test_a_divided_card_is_used_by_its_slices() -> None:
    """Each MIG slice gets a worker, by its UUID, and a whole card beside them one as well."""
    seen = GpusSeen("nvidia", read_list(DIVIDED), "nvidia-smi lists 3")
    mine = ["MIG-11111111-aaaa-0000-0000-000000000000", "MIG-22222222-aaaa-0000-0000-000000000000"]
    assert visible("all", seen) == [*mine, "1"]
    assert visible("all", seen, given="MIG-2222") == ["MIG-2222"]
    with pytest.raises(UsageProblem, match="is a MIG slice, and slices cannot work together"):
        visible("2", seen, each=2)


@pytest.mark.parametrize(
    ("asked", "given", "each", "told"),
    [
        ("3", None, 2, "3 GPUs cannot be divided into groups of 2"),
        (
            "0,7",
            None,
            1,
            r"no GPU '7': 4 GPUs may be used here \(0: GPU-aaaa1111.*numbers from 0 to 3",
        ),
        ("5", None, 1, "4 GPUs may be used here"),
        ("1,1", None, 1, "names '1' twice"),
        ("1,GPU-bbbb2222-0000-0000-0000-000000000000", None, 1, "twice"),
        ("0", None, 1, "for GPU 0 alone give `--gpus 0,`"),
        ("-1", None, 1, "no GPU '-1'"),
        ("", None, 1, "no GPU ''"),
        ("0,,1", None, 1, "no GPU ''"),
        ("every", None, 1, "Give `all`, how many, or a list"),
        ("9" * 5000, None, 1, "no GPU"),
        ("all", "", 1, "CUDA_VISIBLE_DEVICES='' leaves none of them"),
        ("all", "-1", 1, "to run on the CPU leave --gpus out"),
        ("all", "0,9", 1, "CUDA_VISIBLE_DEVICES='0,9': '9' is not a GPU of this machine"),
        ("all", "GPU-", 1, "names several GPUs"),
        ("all", "1,GPU-bbbb", 1, "twice"),
        ("2,", "0,1", 1, "2 GPUs may be used here"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    asked: str, given: str | None, each: int, told: str
) -> None:
    """A card that is not there, the same twice, a number that cannot be divided: one sentence with
    what was seen."""
    with pytest.raises(UsageProblem, match=told):
        visible(asked, given=given, each=each)


def play(monkeypatch: pytest.MonkeyPatch, result: Any) -> None:
    def ask(*_: Any, **__: Any) -> Any:
        if isinstance(result, BaseException):
            raise result
        return result

    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(subprocess, "run", ask)


def test_cards_are_counted_by_nvidia_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What it lists is what there is."""
    play(monkeypatch, subprocess.CompletedProcess(["nvidia-smi"], 0, LISTED, ""))
    seen = gpus_seen(tmp_path, tmp_path, tmp_path)
    assert (seen.make, len(seen.devices), seen.looked) == ("nvidia", 4, "nvidia-smi lists 4")


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (subprocess.TimeoutExpired("nvidia-smi", 20), "its driver hangs"),
        (
            subprocess.CompletedProcess([], 9, "", "couldn't communicate with the NVIDIA driver"),
            "couldn't communicate",
        ),
        (OSError("exec format error"), "cannot be started: exec format error"),
        (subprocess.CompletedProcess([], 0, "\x00nonsense\n" * 50_000, ""), "lists no card"),
    ],
)
def test_where_no_card_is_seen_the_reason_is_told(
    result: Any, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A driver that hangs or fails, or a list that makes no sense: no card, with what was looked at
    and what to do."""
    play(monkeypatch, result)
    seen = gpus_seen(tmp_path, tmp_path, tmp_path)
    with pytest.raises(UsageProblem, match=rf"no GPU was found: .*{told}.*leave --gpus out"):
        groups("all", seen, None, 1)


def test_the_driver_shows_cards_without_nvidia_smi(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A container without NVIDIA's tools still has /proc."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    for address in ("0000:81:00.0", "0000:02:00.0"):
        (tmp_path / "driver/nvidia/gpus" / address).mkdir(parents=True)
    assert gpus_seen(tmp_path, tmp_path, tmp_path).devices == (Device("0"), Device("1"))


def test_amd_cards_are_those_with_a_device_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The kernel shows the nodes of all cards and of the CPU; a container has files of its own
    cards only."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    nodes = {
        "0": "simd_count 0\n",
        "1": "simd_count 304\ndrm_render_minor 128\n",
        "2": "simd_count 304\ndrm_render_minor 129\n",
    }
    for name, text in nodes.items():
        folder = tmp_path / "class/kfd/kfd/topology/nodes" / name
        folder.mkdir(parents=True)
        (folder / "properties").write_text(text)
    (tmp_path / "dri").mkdir()
    (tmp_path / "dri/renderD128").touch()
    seen = gpus_seen(tmp_path, tmp_path, tmp_path)
    assert (seen.make, seen.devices) == ("amd", (Device("0"),))
    assert VARIABLES["amd"] == ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


def card_workers(settings: WorkerSettings, asked: str = "all", each: int = 2) -> GpuWorkers:
    cards = Cards(settings, groups(asked, FOUR, None, each), VARIABLES["nvidia"], {})
    return GpuWorkers(cards, ["penstock", "worker"], "pool@%h")


def test_each_worker_has_its_own_cards_ports_and_folders(tmp_path: Path) -> None:
    """Nothing that must differ between two workers of a machine is the same: cards, name, metrics,
    probe files, price."""
    settings = WorkerSettings(
        lane="gpu",
        metrics_port=9400,
        cost={"usd_per_gpu_hour": 2.0, "gpus": 4},  # type: ignore[arg-type]  # as read
    )
    workers = card_workers(settings)
    assert [workers.words(number)[-1] for number in (1, 2)] == [
        "pool-cards-0-1@%h",
        "pool-cards-2-3@%h",
    ]
    assert workers.environment(2, tmp_path / "b") == {
        "CUDA_VISIBLE_DEVICES": "2,3",
        "PENSTOCK_GPU__CARDS": "2,3",
        "PENSTOCK_PROBE_DIR": str(tmp_path / "b"),
        "PENSTOCK_METRICS_PORT": "9401",
        "PENSTOCK_COST__GPUS": "2",
    }


def test_cards_are_counted_as_nvidia_smi_counts_unless_they_were_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CUDA's own order is by speed: numbers that we counted come with the order that they are of. A
    lane that hosts no engine has no use for them, and says so."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    play(monkeypatch, subprocess.CompletedProcess(["nvidia-smi"], 0, LISTED, ""))
    settings = WorkerSettings(lane="gpu")
    assert cards_asked(2, settings).of_worker(2) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "1",
        "PENSTOCK_GPU__CARDS": "1",
    }
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,2")
    assert cards_asked("0,", settings).of_worker(1) == {
        "CUDA_VISIBLE_DEVICES": "3",
        "PENSTOCK_GPU__CARDS": "3",
    }
    with pytest.raises(UsageProblem, match=r"--gpus all: a worker of lane api .* leave --gpus out"):
        cards_asked("all", WorkerSettings(lane="api"))


def test_a_job_of_several_lanes_gives_gpus_to_the_one_that_hosts_a_model(tmp_path: Path) -> None:
    """Each of its workers has its cards, wherever the lane stands among those that the job may go
    to; the others have as many workers as without."""
    api, gpu = WorkerSettings(lane="api"), WorkerSettings(lane="gpu")
    own: Any = SimpleNamespace(say=print, note=print)
    fleet = Fleet(
        (api, gpu),
        StateFolder.create(tmp_path),
        2,
        cards=Cards(gpu, groups("3", FOUR, None, 1), VARIABLES["nvidia"], {}),
        places=[],
        hurry=lambda: False,
        progress=own,
        standby=own,
    )
    workers = fleet._services.variables_by_worker()
    assert [(one["PENSTOCK_LANE"], one.get("CUDA_VISIBLE_DEVICES")) for one in workers] == [
        *[("api", None), ("api", None)],
        *[("gpu", "0"), ("gpu", "1"), ("gpu", "2")],
    ]


def test_ports_that_run_out_are_found_before_the_start() -> None:
    """The last worker needs a port as well."""
    with pytest.raises(UsageProblem, match="metrics_port = 65535: 2 workers take a port each"):
        check_ports(card_workers(WorkerSettings(lane="gpu", metrics_port=65_535)))


def test_flags_of_one_worker_are_read_as_they_were_given() -> None:
    """What a worker is started with means the same as on the line that starts it, texts that look
    like numbers included."""
    from penstock_cli.job.given import parse_pairs

    given = parse_pairs(
        "--engine", ["max_model_len=8k", 'quantization="8"', "tensor_parallel_size=2", "x=[1]"]
    )
    flags = command._flags("gpu", 7, {"model": "/m odels", "engine": given})
    assert flags[:5] == ["--lane", "gpu", "--concurrency", "7", "--model=/m odels"]
    assert parse_pairs("--engine", [flag.removeprefix("--engine=") for flag in flags[5:]]) == given


def test_a_place_of_adapters_reaches_the_worker_and_each_cards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`--lora-from` is the setting gpu.lora_from; another lane has none, and says so by the flag's
    own name."""
    started: list[Any] = []
    monkeypatch.setattr(
        "penstock_workers.__main__.run_worker", lambda *_, hosted, **__: started.append(hosted)
    )
    monkeypatch.setattr("penstock_cli.doctor.worker.check", started.append)
    command.worker("gpu", model="/models/llama", lora_from="s3://models/loras/")
    settings, hosted = started
    assert settings.gpu.lora_from == "s3://models/loras"
    assert hosted == {"model": "/models/llama", "lora_from": "s3://models/loras/"}
    assert command._flags("gpu", None, hosted)[2:] == [
        "--model=/models/llama",
        "--lora-from=s3://models/loras/",
    ]
    with pytest.raises(
        UsageProblem, match="--lora-from is for workers of lane gpu, and this one serves lane embed"
    ):
        command.worker("embed", model="/models/bge", lora_from="/loras")


def test_two_tensor_parallel_sizes_are_refused() -> None:
    """Which of the two is meant cannot be known."""
    with pytest.raises(
        UsageProblem, match="--tensor-parallel 2 and --engine tensor_parallel_size=4 differ"
    ):
        command._with_tensor_parallel({"tensor_parallel_size": 4}, 2)
    assert command._with_tensor_parallel({}, 2) == {"tensor_parallel_size": 2}


@pytest.mark.parametrize(
    ("engine", "cards"),
    [
        ({}, 1),
        ({"tensor_parallel_size": "2", "pipeline_parallel_size": 2, "data_parallel_size": 3}, 12),
        ({"tensor_parallel_size": "many"}, 1),
        ({"data_parallel_size": 0}, 1),
    ],
)
def test_an_engine_uses_as_many_cards_as_its_sizes_say(engine: dict[str, Any], cards: int) -> None:
    """Tensor, pipeline and data parallel sizes multiply; what is not a number is left for vLLM to
    refuse."""
    assert WorkerSettings(lane="gpu", gpu={"engine": engine}).gpu.cards_per_engine() == cards  # type: ignore[arg-type]  # as read


def test_status_says_which_cards_work_where() -> None:
    """Live workers by machine, groups of cards with a plus; hostile names are cut and counted,
    never shown whole."""
    seen = [
        WorkerSeen("node-a-17", 1.0, {"lane": "gpu", "cards": "0,1"}),
        WorkerSeen("node-a-18", 1.0, {"lane": "gpu", "cards": "2,3"}),
        WorkerSeen("node-b-9", 1.0, {"lane": "gpu", "cards": "0"}),
        WorkerSeen("node-c-9", 900.0, {"lane": "gpu", "cards": "0"}),
        WorkerSeen("node-d-9", 1.0, {"lane": "gpu"}),
        WorkerSeen("node-e-9", 1.0, {"lane": "embed", "cards": "0"}),
    ]
    assert (
        gpus_in_words(seen, "gpu")
        == "2 workers on node-a (cards 0+1, 2+3); 1 worker on node-b (cards 0)"
    )
    assert gpus_in_words(seen[4:], "gpu") is None
    many = [
        WorkerSeen(f"m{number}-{'x' * 999}-1", 1.0, {"lane": "gpu", "cards": "7" * 9999})
        for number in range(500)
    ]
    told = gpus_in_words(many, "gpu")
    assert told is not None
    assert len(told) < 2000
    assert told.endswith("and 494 more machines")
