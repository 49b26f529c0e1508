"""What the doctor sees of a machine that is to host a model, and what it says that it could not
see."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from encoders import FakeEncoder

from penstock_cli.doctor.fleet import asked_lane
from penstock_cli.errors import UsageProblem
from penstock_producer.errors import SettingsError
from penstock_producer.settings import ProducerSettings
from penstock_workers.lanes import machine
from penstock_workers.lanes.embed.embed_lane import EmbedLane
from penstock_workers.lanes.embed.row import TRIES
from penstock_workers.lanes.embed.row import inspect as inspect_embed
from penstock_workers.lanes.gpu.inspection import inspect as inspect_gpu
from penstock_workers.lanes.one_run import one_run
from penstock_workers.lanes.registry import lane_row
from penstock_workers.lanes.row import LaneFinding
from penstock_workers.settings import WorkerSettings

TWO_CARDS = "0, NVIDIA H100, 81559, 80000, 550.54\n1, NVIDIA H100, 81559, 1000, 550.54\n"


def sentences(found: Iterator[LaneFinding], *, good: bool) -> str:
    return "\n".join(f"{one.seen} | {one.fix}" for one in found if one.is_good is good)


def nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program of that name, alone in the path."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")


def model(
    folder: Path, *, weights: Sequence[str] = ("model.safetensors",), tokenizer: bool = True
) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for name in weights:
        (folder / name).write_bytes(b"w" * 1024)
    if tokenizer:
        (folder / "tokenizer.json").write_text("{}")
    return folder


def of_gpu(**gpu: Any) -> WorkerSettings:
    return WorkerSettings.load(lane="gpu", gpu=gpu)


def test_cards_are_listed_with_their_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name, memory and driver of each, as nvidia-smi says them; lines that make no sense are passed
    over."""
    nvidia_smi(
        tmp_path, monkeypatch, f"printf '{TWO_CARDS.replace(chr(10), chr(92) + 'n')}what?\\n'"
    )
    found = machine.cards()
    assert isinstance(found, list)
    assert len(found) == 2
    assert "card 1: NVIDIA H100, 1.0 GiB of 79.6 GiB free, driver 550.54" in sentences(
        machine.find_gpus(found), good=True
    )


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'driver mismatch' >&2; exit 9", "nvidia-smi fails: driver mismatch"),
        ("exit 0", "lists no card"),
    ],
)
def test_a_driver_that_fails_is_told(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its own words, or that it has no card to show."""
    nvidia_smi(tmp_path, monkeypatch, script)
    assert said in sentences(machine.find_gpus(machine.cards()), good=False)


def test_without_a_driver_the_doctor_says_what_it_could_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without nvidia-smi is not a machine without cards; neither is claimed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    said = sentences(machine.find_gpus(machine.cards()), good=False)
    assert "neither driver nor cards could be seen" in said
    assert list(machine.find_room(10**15, machine.cards(), cards_used=1)) == [], (
        "nothing is said of what was not seen"
    )


def test_a_hung_driver_does_not_hang_the_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for as long as the limit says."""
    monkeypatch.setattr(machine, "ASK_TIMEOUT_S", 0.05)
    nvidia_smi(tmp_path, monkeypatch, "exec sleep 60")
    assert "its driver hangs" in sentences(machine.find_gpus(machine.cards()), good=False)


def test_the_files_of_a_model_are_looked_for(tmp_path: Path) -> None:
    """Configuration, tokenizer, weights, and every file that an index names."""
    whole = sentences(machine.find_model("gpu.model", model(tmp_path / "whole")), good=True)
    assert "GiB of weights" in whole
    assert "has a tokenizer" in whole
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in sentences(
        machine.find_model("gpu.model", tmp_path / "empty"), good=False
    )
    bare = sentences(
        machine.find_model("gpu.model", model(tmp_path / "bare", weights=(), tokenizer=False)),
        good=False,
    )
    assert "has no weights" in bare
    assert "has no tokenizer" in bare
    torn = model(tmp_path / "torn", weights=("a.safetensors",))
    (torn / machine.INDEX).write_text(
        json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}})
    )
    assert "lacks 1 files of its weights, such as b.safetensors" in sentences(
        machine.find_model("m", torn), good=False
    )
    (torn / machine.INDEX).write_text("[1]")
    assert not sentences(machine.find_model("m", torn), good=False), (
        "a file that makes no sense claims nothing"
    )


def test_weights_are_held_against_the_cards() -> None:
    """More than the cards that the engine uses together hold, or more cards than there are, is
    refused."""
    two = [
        machine.Gpu(str(at), "H100", 80 * machine.GIB, 80 * machine.GIB, "550") for at in range(2)
    ]
    assert not list(machine.find_room(70 * machine.GIB, two, cards_used=1))
    assert "140.0 GiB of weights do not fit into 80.0 GiB of 1 card" in sentences(
        machine.find_room(140 * machine.GIB, two, cards_used=1), good=False
    )
    assert not list(machine.find_room(140 * machine.GIB, two, cards_used=2))
    assert "is to use 4 cards, and 2 are here" in sentences(
        machine.find_room(1, two, cards_used=4), good=False
    )
    assert "is to use 4 cards" in sentences(
        machine.find_room(1, two, cards_used=2, replicas=2), good=False
    )


def test_memory_that_others_use_is_seen() -> None:
    """An engine takes a share of each card at its start, and fails where that is not free on as
    many as it needs."""
    half = [
        machine.Gpu(str(at), "H100", 80 * machine.GIB, (80 - 40 * at) * machine.GIB, "550")
        for at in range(2)
    ]
    assert not list(machine.find_room(machine.GIB, half, cards_used=1, share=0.9))
    said = sentences(machine.find_room(machine.GIB, half, cards_used=2, share=0.9), good=False)
    assert "takes 90% of a card's memory at its start, and 1 of 2 cards have that free" in said
    assert "2 are to be used" in said
    assert not list(machine.find_room(machine.GIB, half, cards_used=2, share=0.5))


def test_little_shared_memory_matters_to_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container has 64 MiB of it by default; one process needs none."""
    usage = type("Usage", (), {"total": 64 * machine.MIB, "free": 64 * machine.MIB, "used": 0})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    assert "--shm-size" in sentences(
        machine.find_shared_memory(processes=4, folder=tmp_path), good=False
    )
    assert not sentences(machine.find_shared_memory(processes=1, folder=tmp_path), good=False)


def test_adapters_are_read(tmp_path: Path) -> None:
    """Their files, and their rank against what the engine allows."""
    adapters = {}
    for name, rank in (("small", 8), ("large", 64), ("odd", "x")):
        adapters[name] = str(model(tmp_path / name, weights=("adapter_model.safetensors",)))
        (tmp_path / name / "adapter_config.json").write_text(json.dumps({"r": rank}))
    settings = of_gpu(
        model=str(model(tmp_path / "m")),
        lora={**adapters, "gone": str(tmp_path / "gone")},
        engine={"max_lora_rank": 16},
    )
    bad = sentences(inspect_gpu(settings), good=False)
    assert (
        "gpu.lora.large has rank 64, above max_lora_rank = 16 | set gpu.engine.max_lora_rank = 64, "
        "or leave it out"
    ) in bad
    assert "gpu.lora.odd: its adapter_config.json names no rank" in bad
    assert "gpu.lora.gone: there is no folder" in bad
    assert "gpu.lora.small has rank 8" in sentences(inspect_gpu(settings), good=True)


def test_what_cannot_be_seen_from_here_is_said() -> None:
    """A model on the hub, a server beside the worker, no model at all."""
    assert "its files could not be seen" in sentences(
        inspect_gpu(of_gpu(model="org/model")), good=True
    )
    assert "no model is configured" in sentences(inspect_gpu(of_gpu()), good=False)
    beside = list(inspect_gpu(of_gpu(upstream_url="http://127.0.0.1:9/v1")))
    assert "does not answer" in beside[0].seen
    assert "cannot be seen from here" in beside[1].seen
    embed = WorkerSettings.load(lane="embed", embed={"model": "no-such-model"})
    assert "no-such-model" in sentences(inspect_embed(embed), good=False)


def test_a_run_of_one_token_starts_the_lane_as_a_worker_does(tmp_path: Path) -> None:
    """It says how long that took, or what went wrong, in the engine's words."""
    settings = WorkerSettings.load(lane="embed", embed={"model": str(model(tmp_path / "m"))})
    made = EmbedLane(settings.embed, make_encoder=lambda *_: FakeEncoder())
    row = cast(Any, type("Row", (), {"make": staticmethod(lambda _: made)}))
    (went_well,) = one_run(row, settings, TRIES)
    assert went_well.is_good
    assert "a run of one token went well: loaded in" in went_well.seen
    (refused,) = one_run(row, settings, [("/v1/chat/completions", b"{}")])
    assert "refuses a run of one token" in refused.seen
    (broken,) = one_run(lane_row("gpu"), of_gpu(), TRIES)
    assert "the gpu lane needs a model" in broken.seen


def test_flags_of_the_doctor_go_together() -> None:
    """`--try` and `--model` need a lane, and a lane must host a model."""
    with pytest.raises(UsageProblem, match="go with --lane"):
        asked_lane(None, None, attempt=True)
    with pytest.raises(UsageProblem, match="gpu and embed"):
        asked_lane("api", None, attempt=False)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("file:///results", "write the folder alone: /results"),
        ("https://host/results", "give a folder or s3://bucket/prefix"),
        ("s3://", "give a folder or s3://bucket/prefix"),
    ],
)
def test_a_place_for_results_that_cannot_work_is_refused_at_once(url: str, said: str) -> None:
    """When the settings are read, not when the first job ends."""
    with pytest.raises(SettingsError, match="results_url") as refused:
        ProducerSettings.load(results_url=url)
    assert said in str(refused.value)
    assert ProducerSettings.load(results_url="s3://bucket/x").results_url == "s3://bucket/x"
    assert WorkerSettings.load(results_url="").results_url is None
