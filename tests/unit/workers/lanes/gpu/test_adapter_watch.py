"""Adapters that come and go: what is taken up, when, and what is not, with an engine that only
notes what it is given."""

from __future__ import annotations

import gc
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from adapter_files import CONFIG, WEIGHTS, config, weights, write_adapter

from penstock_producer.feed.queues import NAMES_MAX
from penstock_workers.errors import StoreAway
from penstock_workers.lanes.gpu import adapter_watch
from penstock_workers.lanes.gpu.adapter_watch import AdapterWatch
from penstock_workers.lanes.gpu.engine.adapters import (
    ROOM_KEPT,
    ROOM_RANK,
    Adapter,
    Adapters,
    UnusableAdapter,
    misfit,
    read_adapter,
)
from penstock_workers.lanes.model_cache import FileCache, FileLock
from penstock_workers.lanes.model_stores import FolderStore

MIB = 1024**2


class House:
    """A watch over a folder.

    ``refuses`` are names that the engine does not load; ``is_up`` says whether there is one."""

    def __init__(self, tmp_path: Path, *, most: int = 100 * MIB, **static: str) -> None:
        self.folder = tmp_path / "adapters"
        self.folder.mkdir()
        self.cache = FileCache(tmp_path / "cache", most)
        self.adapters = Adapters(static, "llama-8b", more=True)
        self.loaded: list[str] = []
        self.refuses: set[str] = set()
        self.is_up = True
        self.store = FolderStore(self.folder)
        self.watch = AdapterWatch(
            self.store,
            self.cache,
            self.adapters,
            self._load,
            taken={"llama-8b"},
            every_s=30.0,
            most_bytes=MIB,
        )

    async def _load(self, adapter: Adapter) -> bool:
        if adapter.name in self.refuses:
            raise UnusableAdapter("ValueError: its layers are not the model's")
        if self.is_up:
            self.loaded.append(adapter.name)
        return self.is_up

    def served(self) -> set[str]:
        return set(self.adapters.announced())

    def now(self, name: str) -> Adapter:
        adapter = self.adapters.get(name)
        assert adapter is not None
        return adapter


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


async def test_an_adapter_that_rests_is_served(house: House) -> None:
    """From the cache, loaded before it is announced, and loaded once however often it is seen."""
    write_adapter(house.folder / "legal", rank=64)
    await house.watch.look()
    await house.watch.look()
    assert (house.served(), house.loaded) == ({"legal"}, ["legal"])
    adapter = house.now("legal")
    assert adapter.rank == 64
    assert not Path(adapter.folder).is_relative_to(house.folder)
    assert (Path(adapter.folder) / WEIGHTS).read_bytes() == weights()


async def test_a_fresh_adapter_must_be_seen_twice(house: House) -> None:
    """What was written a moment ago may be half there: it is taken once a second look finds it
    unchanged."""
    write_adapter(house.folder / "legal", age_s=None)
    await house.watch.look()
    assert house.served() == set()
    (house.folder / "legal" / WEIGHTS).write_bytes(weights(9))
    await house.watch.look()
    assert house.served() == set()
    await house.watch.look()
    assert house.served() == {"legal"}


async def test_weights_that_were_cut_are_refused_until_they_change(house: House, said: Any) -> None:
    """Their own header says how long they are; the reason is in the log once, and the engine never
    sees them."""
    write_adapter(house.folder / "legal")
    (house.folder / "legal" / WEIGHTS).write_bytes(weights()[:-4])
    for _ in range(4):
        await house.watch.look()
    assert (house.served(), house.loaded) == (set(), [])
    assert said.text.count("its header speaks of") == 1
    write_adapter(house.folder / "legal")
    await house.watch.look()
    assert house.served() == {"legal"}


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        ({CONFIG: b"{"}, "is not JSON"),
        ({CONFIG: b"[" * 100_000}, "is not JSON"),
        ({CONFIG: config(0)}, "a rank is a positive integer"),
        ({CONFIG: config(8, rank_pattern=[1])}, "rank_pattern is"),
        ({CONFIG: config(1024)}, "its rank is 1024, and vLLM takes 512 at most"),
        ({CONFIG: config(8, peft_type="IA3")}, "only LORA adapters are served"),
        ({CONFIG: b" " * (MIB + 1)}, "gpu.lora_max_bytes allows"),
        ({CONFIG: b" " * (1024 * 1000)}, "is not JSON"),
        ({WEIGHTS: b""}, "is no safetensors file"),
        ({WEIGHTS: b"\xff" * 64}, "is no safetensors file"),
        ({WEIGHTS: b"x" * (2 * MIB)}, "gpu.lora_max_bytes allows"),
    ],
)
async def test_a_broken_adapter_never_reaches_the_engine(
    house: House, said: Any, spoil: dict[str, bytes], why: str
) -> None:
    """Whatever lies there: it is refused once, with its reason, and the others are served."""
    for name, content in spoil.items():
        (write_adapter(house.folder / "bad") / name).write_bytes(content)
    write_adapter(house.folder / "good")
    for _ in range(3):
        await house.watch.look()
    assert (house.served(), house.loaded) == ({"good"}, ["good"])
    assert said.text.count(why) == 1


@pytest.mark.parametrize(
    "name", ["a b", "-x", "n\nERROR forged", "a@b", "x" * 129, "\u202eevil", "llama-8b"]
)
async def test_a_folder_whose_name_is_no_name_is_refused(
    house: House, said: Any, name: str
) -> None:
    """Control characters, spaces, names too long and the model's own name: nothing of it is read,
    and no log line is forged."""
    write_adapter(house.folder / name)
    await house.watch.look()
    assert (house.served(), house.loaded) == (set(), [])
    assert len([record for record in said.records if "its name is" in record.getMessage()]) == 1
    assert "\n" not in said.records[-1].getMessage()


async def test_an_adapter_of_the_settings_keeps_its_name(tmp_path: Path) -> None:
    """One that is found cannot take the place of one that the operator named."""
    house = House(tmp_path, legal=str(write_adapter(tmp_path / "own")))
    write_adapter(house.folder / "legal")
    await house.watch.look()
    assert house.now("legal").folder == str(tmp_path / "own")


async def test_weights_of_another_format_are_named(house: House, said: Any) -> None:
    """An adapter that has pickled weights alone is no upload under way: after two looks the log
    says what it lacks."""
    write_adapter(house.folder / "legal")
    (house.folder / "legal" / WEIGHTS).rename(house.folder / "legal" / "adapter_model.bin")
    await house.watch.look()
    assert WEIGHTS not in said.text
    for _ in range(3):
        await house.watch.look()
    assert said.text.count(f"it has no {WEIGHTS}") == 1


async def test_what_the_engine_refuses_is_not_served(house: House, said: Any) -> None:
    """It is asked once for these files, and again when they are others."""
    house.refuses = {"legal"}
    write_adapter(house.folder / "legal")
    for _ in range(3):
        await house.watch.look()
    assert said.text.count("its layers are not the model") == 1
    house.refuses = set()
    await house.watch.look()
    assert house.served() == set()
    write_adapter(house.folder / "legal", values=9)
    await house.watch.look()
    assert house.served() == {"legal"}


async def test_a_new_version_takes_the_place_of_the_old(house: House) -> None:
    """Under another name for vLLM, whose computed prefixes are kept by name; the old files stay
    while a call has them."""
    write_adapter(house.folder / "legal", values=8)
    await house.watch.look()
    old = house.now("legal")
    write_adapter(house.folder / "legal", values=9)
    await house.watch.look()
    new = house.now("legal")
    assert (house.served(), house.loaded) == ({"legal"}, ["legal", "legal"])
    assert old.number != new.number
    assert old.version != new.version
    lock = Path(old.folder).with_suffix(".lock")
    assert not is_free(lock)
    del old
    gc.collect()
    assert is_free(lock)
    assert not is_free(Path(new.folder).with_suffix(".lock"))


async def test_a_version_that_is_broken_leaves_the_old_one_served(house: House, said: Any) -> None:
    """The log says so."""
    write_adapter(house.folder / "legal")
    await house.watch.look()
    old = house.now("legal")
    write_adapter(house.folder / "legal", rank="high")
    await house.watch.look()
    assert house.now("legal") is old
    assert "the one before is served on" in said.text


async def test_one_that_is_gone_is_withdrawn(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is announced no more at once, and found by what is on its way for a while; then it
    is not there."""
    write_adapter(house.folder / "legal")
    await house.watch.look()
    for name in (CONFIG, WEIGHTS):
        (house.folder / "legal" / name).unlink()
    monkeypatch.setattr(adapter_watch, "RETIRE_S", 0.0)
    await house.watch.look()
    assert house.served() == set()
    adapter = house.now("legal")
    house.adapters.drop_retired(adapter)
    assert house.adapters.get("legal") is None
    write_adapter(house.folder / "legal")
    await house.watch.look()
    assert house.served() == {"legal"}
    assert house.now("legal") is not adapter


async def test_an_outage_of_the_place_withdraws_nothing(
    house: House, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that does not answer has not lost its adapters.

    The log says it once, and again after the next outage."""
    write_adapter(house.folder / "legal")
    await house.watch.look()

    def away() -> None:
        raise StoreAway("the bucket does not answer")

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(house.store, "files", away)
            for _ in range(3):
                await house.watch.look()
        assert house.served() == {"legal"}
        await house.watch.look()
    assert said.text.count("the bucket does not answer") == 2


async def test_nothing_is_taken_up_while_there_is_no_engine(house: House) -> None:
    """An adapter that no engine has loaded is not announced: the next look tries again."""
    house.is_up = False
    write_adapter(house.folder / "legal")
    await house.watch.look()
    assert house.served() == set()
    house.is_up = True
    await house.watch.look()
    assert house.served() == {"legal"}


async def test_a_full_cache_is_named_and_tried_again(tmp_path: Path, said: Any) -> None:
    """An adapter that has no room is not refused for good."""
    house = House(tmp_path, most=100)
    write_adapter(house.folder / "legal")
    await house.watch.look()
    await house.watch.look()
    assert said.text.count("raise it; it is tried again in 30 s") == 1
    house.cache._most_bytes = MIB
    await house.watch.look()
    assert house.served() == {"legal"}


async def test_a_worker_serves_no_more_names_than_it_can_look_for(house: House, said: Any) -> None:
    """Each name is a queue: beyond the limit adapters wait until another one goes."""
    house.watch._most = 2
    assert NAMES_MAX > 2
    for name in ("a", "b", "c"):
        write_adapter(house.folder / name)
    await house.watch.look()
    assert house.served() == {"a", "b"}
    assert "serves 2 adapters already" in said.text
    (house.folder / "a" / CONFIG).unlink()
    await house.watch.look()
    assert house.served() == {"b", "c"}


def test_an_engine_makes_room_for_what_may_come(tmp_path: Path) -> None:
    """Without any adapter at its start, and with one of a higher rank than it would make room
    for."""
    empty = Adapters({}, "m", more=True).arguments()
    assert (empty["enable_lora"], empty["max_lora_rank"], empty["max_cpu_loras"]) == (
        True,
        ROOM_RANK,
        ROOM_KEPT,
    )
    high = Adapters({"x": str(write_adapter(tmp_path / "x", rank=100))}, "m", more=True).arguments()
    assert high["max_lora_rank"] == 128
    assert Adapters({}, "m").arguments() == {}


def test_high_ranks_on_a_cpu_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once they make every request slow: which adapter it is, and what to do (H6)."""
    folders = {"low": 64, "high": 512}
    adapters = Adapters(
        {name: str(write_adapter(tmp_path / name, rank=rank)) for name, rank in folders.items()},
        "m",
    )
    adapters.warn_of_ranks(64)
    assert "computes on a CPU" not in caplog.text
    adapters.warn_of_ranks(512)
    assert "gpu.lora.high: this engine computes on a CPU" in caplog.text
    assert "gpu.lora.low" not in caplog.text


def test_a_new_engine_loads_what_no_engine_has_and_what_it_keeps(tmp_path: Path) -> None:
    """Hundreds of adapters that were loaded before do not hold up the engine that takes a dead
    one's place."""
    folders = {f"a{number}": str(write_adapter(tmp_path / f"a{number}")) for number in range(5)}
    adapters = Adapters(folders, "m", more=True)
    assert len(adapters.to_load(2)) == 5
    for adapter in list(adapters.usable())[:4]:
        adapter.proved = True
    assert [adapter.name for adapter in adapters.to_load(2)] == ["a4", "a0", "a1"]


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        (
            {"layers.0.self_attn.q_proj.lora_A": [8, 64], "layers.3.mlp.down_proj.lora_B": [64, 8]},
            None,
        ),
        (
            {"layers.0.self_attn.q_proj.lora_A": [8, 32]},
            "it is for a model of width 32, and this one has 64",
        ),
        (
            {"layers.0.self_attn.o_proj.lora_B": [128, 8]},
            "it is for a model of width 128, and this one has 64",
        ),
        (
            {"layers.4.self_attn.o_proj.lora_B": [64, 8]},
            "it has weights for 5 layers, and this model has 4",
        ),
        ({"visual.layers.9.self_attn.q_proj.lora_A": [8, 32]}, None),
        ({"layers.0.self_attn.q_proj.lora_A": "large", "layers.0.mlp.up_proj.lora_A": [8]}, None),
    ],
)
def test_an_adapter_of_another_model_is_known_by_its_layers(
    tmp_path: Path, tensors: dict[str, Any], why: str | None
) -> None:
    """vLLM takes layers that are too small, and answers without sense; layers of other parts of a
    model tell nothing."""
    folder = write_adapter(
        tmp_path / "legal",
        tensors={f"base_model.model.model.{k}.weight": v for k, v in tensors.items()},
    )
    model = SimpleNamespace(hidden_size=64, num_hidden_layers=4)
    assert misfit(read_adapter(folder), model) == why
    assert misfit(read_adapter(folder), SimpleNamespace()) is None


def is_free(lock: Path) -> bool:
    with FileLock(lock) as own:
        return own.hold()
