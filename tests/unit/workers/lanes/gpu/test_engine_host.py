"""The life of a hosted engine, with one that computes nothing: hung, lost and failing ones, and the
limits of an item's time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from adapter_files import write_adapter

from penstock_workers.item.answer import Answer, NoAnswer
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.item.outcome import Released
from penstock_workers.item.run.fates import FATES
from penstock_workers.lanes import engine_faults
from penstock_workers.lanes.engine_faults import IN_A_ROW
from penstock_workers.lanes.gpu import engine_host
from penstock_workers.lanes.gpu.engine.adapters import Adapter
from penstock_workers.lanes.gpu.engine.engines import EngineCall, EngineDied, EngineFault
from penstock_workers.lanes.gpu.engine_factory import EngineFactory
from penstock_workers.lanes.gpu.gpu_lane import SECONDS_PER_TOKEN, GpuLane, time_limit_s
from penstock_workers.lanes.gpu.requests.calls import Facts
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.lanes.registry import REGISTRY
from penstock_workers.settings import WorkerSettings

CONFIG = SimpleNamespace(
    scheduler_config=SimpleNamespace(max_num_seqs=64, max_num_batched_tokens=8_192),
    parallel_config=SimpleNamespace(data_parallel_size=1),
    cache_config=SimpleNamespace(num_gpu_blocks=0, block_size=0),
    device_config=SimpleNamespace(device_type="cuda"),
    model_config=SimpleNamespace(
        dtype="torch.float16",
        max_model_len=100,
        runner_type="generate",
        hf_text_config=SimpleNamespace(),
    ),
    structured_outputs_config=None,
)
Behaviour = Callable[[EngineCall, Callable[[], None]], Any]


def output(text: str = "yes", reason: str = "stop") -> Any:
    one = SimpleNamespace(
        index=0, text=text, token_ids=[1], finish_reason=reason, stop_reason=None, logprobs=None
    )
    return SimpleNamespace(outputs=[one], prompt_token_ids=[1], num_cached_tokens=0)


class FakeEngine:
    """Does with each call what ``behaviour`` says: an output, an exception, or None for ever."""

    config = CONFIG

    def __init__(self, behaviour: Behaviour, kills: frozenset[str] = frozenset()) -> None:
        """``kills`` are adapters that end the engine which loads them."""
        self._behaviour, self._kills = behaviour, kills
        self.loaded: list[str] = []
        self.killed = self.stopped = False

    async def start(self) -> None:
        """It is there."""

    async def load(self, lora: Any) -> None:
        if lora in self._kills:
            raise EngineDied("a kernel failed")
        self.loaded.append(lora)

    async def run(self, call: EngineCall, began: Callable[[], None]) -> Any:
        came = self._behaviour(call, began)
        if isinstance(came, Exception):
            raise came
        if came is None:
            await asyncio.Event().wait()
        return came

    def tokenizer(self) -> Any:
        return [0] * 10

    def renderer(self) -> None:
        """It makes no prompts."""

    def pids(self) -> list[int]:
        return []

    def is_alive(self) -> bool:
        return not self.killed

    def compiles(self) -> bool:
        return False

    def kill(self) -> bool:
        self.killed = True
        return True

    async def stop(self) -> None:
        self.stopped = True


class House:
    """A lane over fake engines, each made with the behaviour that is set then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **gpu: Any) -> None:
        self.behaviour: Behaviour = lambda _call, _began: output()
        self.engines: list[FakeEngine] = []
        self.gave_up: list[str] = []
        self.kills: frozenset[str] = frozenset()
        monkeypatch.setattr(Adapter, "request", lambda adapter: adapter.name)
        monkeypatch.setattr(EngineFactory, "_make", self._make)
        monkeypatch.setattr(engine_host, "REBUILD_PAUSES_S", (0.0, 0.0))
        monkeypatch.setattr(engine_faults, "LOOK_S", 0.005)
        settings = WorkerSettings(lane="gpu", gpu=GpuSettings(model="m", **gpu))
        self.lane = GpuLane(settings, give_up=self.gave_up.append)

    def _make(self) -> FakeEngine:
        self.engines.append(FakeEngine(self.behaviour, self.kills))
        return self.engines[-1]

    async def ask(self, timeout_s: float = 60.0, **params: Any) -> Answer | NoAnswer:
        params = {"ignore_eos": False, "max_tokens": 8} | params
        facts = Facts("m", chat=True)
        call = EngineCall("job:doc#1", [1], SimpleNamespace(**params), facts=facts)
        asked = Prepared(
            Request("job:doc", "default", "/v1/chat/completions", b"{}", timeout_s), 9, input=call
        )
        return await asyncio.wait_for(self.lane.infer(asked), 5)

    def step(self) -> None:
        """The engine reports one, with a request in it."""
        scheduler = SimpleNamespace(
            num_running_reqs=1, num_waiting_reqs=0, kv_cache_usage=0.0, prefix_cache_stats=None
        )
        self.lane._host._figures.note(scheduler, None)


@pytest.fixture
async def house(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    made = House(monkeypatch, stall_s=0.05)
    await made.lane.start()
    yield made
    await made.lane.close()


async def ended(name: str) -> None:
    """Wait for a task of the host, should it still run."""
    running = [task for task in asyncio.all_tasks() if task.get_name() == name]
    await asyncio.wait_for(asyncio.gather(*running), 5)


async def rebuilt(house: House) -> None:
    await ended("engine rebuild")


def is_released(tried: Answer | NoAnswer) -> bool:
    return isinstance(tried, NoAnswer) and FATES[tried.failure].outcome is Released


async def test_a_hung_engine_is_killed_and_its_items_are_given_back(house: House) -> None:
    """No step for longer than one may take: nothing is a timeout, and the next item has an answer
    of a new engine (H5)."""

    def hang(_call: EngineCall, _began: Callable[[], None]) -> None:
        house.step()

    house.engines[0]._behaviour = hang
    tried = await asyncio.gather(*(house.ask() for _ in range(20)))
    assert all(map(is_released, tried))
    assert house.engines[0].killed
    await rebuilt(house)
    assert len(house.engines) == 2
    assert house.lane.gauges()["deaths"] == 1
    assert isinstance(await house.ask(), Answer)
    assert house.gave_up == []


async def test_an_error_of_the_device_ends_the_engine(house: House) -> None:
    """An engine that reports it and goes on is not believed."""
    house.engines[0]._behaviour = lambda _call, _began: EngineFault(
        "NCCL error: unhandled system error"
    )
    assert is_released(await house.ask())
    assert house.engines[0].killed
    await rebuilt(house)
    assert isinstance(await house.ask(), Answer)


@pytest.mark.parametrize("able", [True, False])
async def test_a_run_of_failures_is_decided_by_one_token(house: House, able: bool) -> None:
    """Asked by the worker itself: an engine that gives it goes on; one that fails at that as well
    is ended."""
    house.lane._host.built.calls = SimpleNamespace(  # type: ignore[union-attr]
        probe=lambda: EngineCall("probe", [0], SimpleNamespace(ignore_eos=False))
    )

    def fail(call: EngineCall, _began: Callable[[], None]) -> Any:
        return output() if able and call.request_id == "probe" else EngineFault("odd")

    house.engines[0]._behaviour = fail
    for _ in range(IN_A_ROW):
        tried = await house.ask()
        assert isinstance(tried, NoAnswer)
        assert tried.failure == "engine_failed"
    await ended("engine probe")
    assert house.engines[0].killed is not able


async def test_where_no_engine_can_be_built_the_worker_ends_with_the_reason(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each of its tries, and not after the first: memory of the old engine may take a while
    to be free."""
    tries: list[int] = []

    async def fail(_: FakeEngine) -> None:
        tries.append(1)
        raise RuntimeError("no memory left")

    monkeypatch.setattr(FakeEngine, "start", fail)
    house.engines[0]._behaviour = lambda _call, _began: EngineFault(
        "CUDA error: device-side assert triggered"
    )
    assert is_released(await house.ask())
    await rebuilt(house)
    assert len(tries) == 2
    assert house.gave_up == ["no engine could be built in 2 tries; the last one: no memory left"]


async def test_an_items_time_begins_with_its_first_token(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose answer began and does not end is a timeout; one that waits in the engine has no
    limit (H6)."""
    house.engines[0]._behaviour = lambda _call, began: began()
    house.step()
    begun = await house.ask(timeout_s=0.01)
    assert isinstance(begun, NoAnswer)
    assert begun.failure == "timeout"
    house.engines[0]._behaviour = lambda _call, _began: None
    waited = await house.ask(timeout_s=0.01)  # until the engine counts as hung
    assert is_released(waited)


def test_the_default_of_an_items_time_follows_max_tokens() -> None:
    """A long answer has as long as a slow engine needs; a job that says a time of its own has
    that."""

    def limit(timeout_s: float, max_tokens: int) -> float:
        call = EngineCall("id", [1], SimpleNamespace(max_tokens=max_tokens))
        return time_limit_s(
            Prepared(Request("t", "p", "/v1/chat/completions", b"", timeout_s), 1, input=call)
        )

    assert limit(120.0, 8) == 120.0
    assert limit(120.0, 4_000) == 4_000 * SECONDS_PER_TOKEN
    assert limit(30.0, 4_000) == 30.0


async def test_a_load_is_shown_until_the_engine_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """While an engine starts its gauges say how far it is; when it is up they say nothing of that
    (H14)."""
    may_start = asyncio.Event()
    monkeypatch.setattr(FakeEngine, "start", lambda _: may_start.wait())
    house = House(monkeypatch)
    starting = asyncio.create_task(house.lane.start())
    while "loading" not in house.lane.gauges():  # noqa: ASYNC110 - the watch sets it, not an event
        await asyncio.sleep(0)
    assert str(house.lane.gauges()["loading"]).startswith("starting the engine, after")
    assert house.lane.gauges()["bound"] == "starting"
    may_start.set()
    await starting
    assert not [name for name in house.lane.gauges() if "load" in name]
    await house.lane.close()


def reported(sequences: int, replicas: int, **cache: Any) -> Any:
    """A config as an engine fills it in at its start."""
    return SimpleNamespace(
        **vars(CONFIG)
        | {
            "scheduler_config": SimpleNamespace(
                max_num_seqs=sequences, max_num_batched_tokens=8_192
            ),
            "parallel_config": SimpleNamespace(data_parallel_size=replicas),
            "cache_config": SimpleNamespace(**cache),
        }
    )


@pytest.mark.parametrize(
    ("config", "sequences", "room"),
    [
        (
            reported(256, 1, kv_cache_size_tokens=5_000, num_gpu_blocks=400, block_size=16),
            256,
            5_000,
        ),
        (
            reported(256, 4, kv_cache_size_tokens=5_000, num_gpu_blocks=1_600, block_size=16),
            1_024,
            20_000,
        ),
        (reported(1_024, 2, num_gpu_blocks=800, block_size=16), 2_048, 12_800),
        (reported(64, 2, kv_cache_size_tokens=None, num_gpu_blocks=None, block_size=None), 128, 0),
    ],
)
async def test_room_and_slots_follow_all_replicas(
    config: Any, sequences: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each replica of a data-parallel engine brings its sequences and its KV cache: vLLM adds up
    blocks, not tokens (H7)."""
    opened: list[tuple[int, int]] = []
    monkeypatch.setattr(FakeEngine, "config", config)
    house = House(monkeypatch)
    monkeypatch.setattr(
        house.lane.queue, "open", lambda seqs, tokens: opened.append((seqs, tokens))
    )
    await house.lane.start()
    await house.lane.close()
    assert opened == [(sequences, room)]
    assert REGISTRY["gpu"].slots is not None
    settings = WorkerSettings(lane="gpu")
    assert REGISTRY["gpu"].slots(settings, house.lane) == 2 * sequences
    assert REGISTRY["gpu"].slots(settings.model_copy(update={"concurrency": 7}), house.lane) is None


async def test_a_found_adapter_that_ends_the_engine_is_left_out_of_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It costs one engine, uncounted, and is never announced; the others are served by the next."""
    place = tmp_path / "adapters"
    write_adapter(place / "early")
    house = House(
        monkeypatch, lora_from=str(place), lora_every_s=3600, cache_dir=str(tmp_path / "cache")
    )
    house.kills = frozenset({"deadly"})
    await house.lane.start()
    watch = house.lane._host._adapter_watch
    assert watch is not None
    try:
        assert (house.engines[0].loaded, house.lane.served.adapters) == (["early"], ("early",))
        write_adapter(place / "deadly")
        write_adapter(place / "fine")
        await watch.look()
        assert house.engines[0].killed
        await rebuilt(house)
        await watch.look()
        assert house.lane.served.adapters == ("early", "fine")
        assert len(house.engines) == 2
        assert isinstance(await house.ask(), Answer)
    finally:
        await house.lane.close()


async def test_what_is_pooled_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no first token, so its time counts from its entry: twice its own, for what is before
    it in the engine's line."""

    class PoolingParams:
        ignore_eos = False

    house = House(monkeypatch, stall_s=600)
    await house.lane.start()
    house.engines[0]._behaviour = lambda _call, _began: None
    call = EngineCall("job:doc#1", [1], PoolingParams())
    asked = Prepared(Request("job:doc", "default", "/v1/embeddings", b"{}", 0.01), 9, input=call)
    late = await asyncio.wait_for(house.lane.infer(asked), 5)
    await house.lane.close()
    assert isinstance(late, NoAnswer)
    assert (late.failure, late.detail.startswith("no answer within 0.02 s in the engine")) == (
        "timeout",
        True,
    )
