"""The batcher: the encoder is never idle while texts wait, one culprit harms no other text, a
request that leaves is gone."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor

import pytest
from encoders import POISON, AtOnce, FakeEncoder, OnCall

from penstock_ratelimit.testing import run_virtual
from penstock_workers.lanes.embed import batcher as module
from penstock_workers.lanes.embed.batcher import (
    Batcher,
    EncoderLost,
    EncodingFailed,
    NoRoom,
)
from penstock_workers.lanes.embed.buckets import Buckets, TokenBudget, TokenIds, Vector
from penstock_workers.lanes.embed.computing import Computing, EncoderThread
from penstock_workers.lanes.embed.encoder import OutOfMemory, SentenceTransformersEncoder
from penstock_workers.lanes.engine_faults import IN_A_ROW

WINDOW_S = 2.0
LOST: list[str] = []  # what batchers said of encoders that are lost


@pytest.fixture(autouse=True)
def nothing_lost() -> None:
    LOST.clear()


def batcher(
    encoder: FakeEncoder, thread: Executor | None = None, *, budget: int = 100_000, items: int = 100
) -> Batcher:
    made = Batcher(
        Computing(encoder, thread=thread or AtOnce(), builder=AtOnce()),
        Buckets(batch_items=items, window_s=WINDOW_S),
        TokenBudget(budget),
        LOST.append,
    )
    made.start()
    return made


async def turns() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def virtually(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    run_virtual(main())


def test_vectors_come_back_in_the_order_of_the_texts() -> None:
    """However the rows were spread over batches."""

    async def main() -> None:
        encoder = FakeEncoder()
        found = await batcher(encoder, items=2).encode([[5] * 40, [6], [7] * 41, [8, 8]])
        assert [vector[:2] for vector in found] == [[40, 5], [1, 6], [41, 7], [2, 8]]
        assert len(encoder.batches) > 1

    virtually(main)


def test_an_idle_encoder_waits_for_the_window() -> None:
    """What comes within the window goes together, at its end."""

    async def main() -> None:
        encoder, loop = FakeEncoder(), asyncio.get_running_loop()
        waiting = batcher(encoder)
        first = asyncio.create_task(waiting.encode([[1] * 9]))
        await asyncio.sleep(WINDOW_S / 2)
        await asyncio.gather(first, waiting.encode([[1] * 9]))
        assert encoder.sizes() == [[9, 9]]
        assert loop.time() == pytest.approx(WINDOW_S, abs=0.01)

    virtually(main)


def test_a_full_batch_does_not_wait() -> None:
    """A batch that has all its items is encoded at once, without waiting for others."""

    async def main() -> None:
        encoder, loop = FakeEncoder(), asyncio.get_running_loop()
        await batcher(encoder, items=3).encode([[1] * 9] * 3)
        assert loop.time() < 0.01

    virtually(main)


async def test_while_it_computes_the_next_batch_gathers() -> None:
    """One batch is computed and at most one is built beside it; others wait for the end of the
    first."""
    encoder, thread = FakeEncoder(), OnCall()
    busy = batcher(encoder, thread, items=2)
    tasks = [asyncio.create_task(busy.encode([[n + 1] * 9])) for n in range(2)]
    await turns()
    assert thread.busy == 1
    tasks += [asyncio.create_task(busy.encode([[n + 5] * 9])) for n in range(4)]
    await turns()
    assert thread.busy == 1
    assert encoder.built == [[[1] * 9, [2] * 9], [[5] * 9, [6] * 9]]
    assert busy.gauges()["waiting"] == 2
    assert busy.gauges()["bound"] == "engine"
    for _ in range(3):
        thread.step()
        await turns()
    await asyncio.gather(*tasks)
    assert encoder.sizes() == [[9, 9]] * 3
    assert busy.gauges()["bound"] == "queue"


async def test_a_cancelled_waiter_leaves_its_bucket() -> None:
    """A text whose request was cancelled is not computed."""
    encoder, thread = FakeEncoder(), OnCall()
    busy = batcher(encoder, thread, items=1)
    first, second, third = (asyncio.create_task(busy.encode([[n + 1] * 9])) for n in range(3))
    await turns()
    second.cancel()
    await turns()
    assert busy.gauges()["waiting"] == 1
    for _ in range(2):
        thread.step()
        await turns()
    await asyncio.gather(first, third)
    assert [batch[0][0] for batch in encoder.batches] == [1, 3]
    assert second.cancelled()


async def test_out_of_memory_the_halves_go_apart_and_the_budget_sinks() -> None:
    """A batch of sixteen that does not fit goes as four of four, and the next one is no larger than
    what fitted."""
    encoder = FakeEncoder(memory=1_024)
    made = Batcher(
        Computing(encoder, thread=AtOnce()),
        Buckets(batch_items=16, window_s=0),
        TokenBudget(4_096),
        LOST.append,
    )
    made.start()
    await made.encode([[1] * 256 for _ in range(16)])
    assert encoder.sizes()[0] == [256] * 16
    assert made.gauges()["token_budget"] == 1_024
    encoder.batches.clear()
    await made.encode([[1] * 256 for _ in range(16)])
    assert encoder.sizes() == [[256] * 4] * 4


async def test_a_text_that_alone_is_too_large_fails_as_itself() -> None:
    """A text that exceeds the memory alone fails with that error, and the others of its batch have
    their vectors."""
    encoder = FakeEncoder(memory=50)
    made = batcher(encoder, items=4)
    ends = await asyncio.gather(
        *(made.encode([[1] * n]) for n in (10, 60, 10, 10)), return_exceptions=True
    )
    assert [type(end) for end in ends] == [list, EncodingFailed, list, list]
    assert "OutOfMemory" in str(ends[1])


async def test_a_culprit_fails_alone() -> None:
    """Seven others in the same batch get their vectors; one batch's exception is not another's."""
    encoder = FakeEncoder()
    made = batcher(encoder, items=8)
    texts = [[POISON if n == 5 else n + 1] * 9 for n in range(8)]
    ends = await asyncio.gather(*(made.encode([text]) for text in texts), return_exceptions=True)
    assert [n for n, end in enumerate(ends) if isinstance(end, EncodingFailed)] == [5]
    assert [end[0][1] for end in ends if isinstance(end, list)] == [1, 2, 3, 4, 5, 7, 8]
    assert len(encoder.batches) == 7  # 8; 4, 4; 2, 2; 1, 1


async def test_a_request_fails_when_one_of_its_texts_does() -> None:
    """A request of several texts fails as a whole when one of them cannot be encoded."""
    with pytest.raises(EncodingFailed, match="poison"):
        await batcher(FakeEncoder(), items=2).encode([[1] * 9, [POISON] * 9])


async def test_an_encoder_that_loses_a_vector_is_not_believed() -> None:
    """No text gets another one's vector: the batch fails and is tried apart."""
    encoder = FakeEncoder()
    whole = encoder.encode
    encoder.encode = lambda ids: whole(ids)[: max(1, len(ids) - 1)]  # type: ignore[method-assign]
    found = await batcher(encoder, items=2).encode([[3] * 9, [4] * 9])
    assert [vector[1] for vector in found] == [3, 4]


async def test_too_many_waiting_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single request is always taken; beside others only what there is room for, those in hand
    not counted."""
    monkeypatch.setattr(module, "MAX_WAITING_ROWS", 4)
    thread = OnCall()
    busy = batcher(FakeEncoder(), thread, items=1)
    tasks = [asyncio.create_task(busy.encode([[1] * 9]))]
    await turns()  # it is being computed, and one of the next is built
    for _ in range(5):
        tasks.append(asyncio.create_task(busy.encode([[1] * 9])))
        await turns()
    with pytest.raises(NoRoom, match="4 texts wait"):
        await busy.encode([[1] * 9])
    while thread.busy:
        thread.step()
        await turns()
    await asyncio.gather(*tasks)


async def test_a_lost_device_is_no_texts_fault() -> None:
    """An error of CUDA: all in the batch and all that wait fail with it, later ones at once; the
    lane hears once (H4)."""
    thread = OnCall()
    encoder = Failing(RuntimeError("CUDA error: an illegal memory access was encountered"))
    made = batcher(encoder, thread, items=2)
    tasks = [asyncio.create_task(made.encode([[1] * 9])) for _ in range(6)]
    await turns()
    thread.step()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(end) for end in ends} == {EncoderLost}
    with pytest.raises(EncoderLost):
        await made.encode([[1]])
    assert len(LOST) == 1
    assert thread.busy == 0


async def test_a_batch_that_never_ends_loses_the_encoder() -> None:
    """After `stall_s` without an end, and no text is blamed for it (H5)."""
    thread = OnCall()
    made = Batcher(
        Computing(FakeEncoder(), stall_s=0.01, thread=thread),
        Buckets(batch_items=1, window_s=0),
        TokenBudget(99),
        LOST.append,
    )
    made.start()
    ends = await asyncio.gather(*(made.encode([[1]]) for _ in range(3)), return_exceptions=True)
    assert {type(end) for end in ends} == {EncoderLost}
    assert "hangs" in LOST[0]


async def test_an_encoder_that_fails_at_everything_takes_itself_out() -> None:
    """After a run of failures it is asked for one token; what cannot do that is lost, and the other
    texts are not blamed."""
    encoder = Failing(RuntimeError("no more"))
    made = batcher(encoder, items=1)
    ends = await asyncio.gather(
        *(made.encode([[2] * 9]) for _ in range(100)), return_exceptions=True
    )
    failed = sum(isinstance(end, EncodingFailed) for end in ends)
    assert failed == IN_A_ROW - 1
    assert sum(isinstance(end, EncoderLost) for end in ends) == 100 - failed
    assert "fails at everything" in LOST[0]


async def test_texts_that_fail_in_a_row_do_not_talk_a_good_encoder_to_death() -> None:
    """A hundred bad texts: each fails by itself, and the next good one has its vector."""
    made = batcher(FakeEncoder(), items=1)
    ends = await asyncio.gather(
        *(made.encode([[POISON]]) for _ in range(100)), return_exceptions=True
    )
    assert {type(end) for end in ends} == {EncodingFailed}
    assert await made.encode([[5]])
    assert LOST == []


async def test_a_failed_batch_is_forgotten_before_its_halves_are_tried() -> None:
    """Its error holds the tensors of the whole batch: a half that is computed beside them has no
    memory, either (H8)."""
    encoder = FakeEncoder()
    whole = encoder.encode
    errors: list[weakref.ref[BaseException]] = []
    alive: list[bool] = []

    class Hog(RuntimeError):
        def __init__(self) -> None:
            errors.append(weakref.ref(self))

    def encode(ids: list[TokenIds]) -> list[Vector]:
        alive.append(any(error() is not None for error in errors))
        if len(ids) > 1:
            raise Hog
        return whole(ids)

    encoder.encode = encode  # type: ignore[method-assign]
    made = batcher(encoder, EncoderThread(), items=4)
    gc.disable()  # nothing is to be left to the collector
    try:
        await made.encode([[1] * 9 for _ in range(4)])
    finally:
        gc.enable()
        await made.close()
    assert len(errors) == 3
    assert alive == [False] * 7


def test_an_encoder_frees_what_did_not_fit_before_it_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the moment the device's memory is given back, nothing of the batch is alive (H8)."""
    held: list[weakref.ref[Tensor]] = []

    class Torch:
        @staticmethod
        def inference_mode() -> contextlib.AbstractContextManager[None]:
            return contextlib.nullcontext()

    def model(features: dict[str, object]) -> None:
        made = features["attended"] = Tensor()
        held.append(weakref.ref(made))
        raise RuntimeError(f"CUDA out of memory. Tried to allocate {made}")

    encoder = object.__new__(SentenceTransformersEncoder)
    given_back: list[bool] = []
    monkeypatch.setattr(encoder, "_torch", Torch, raising=False)
    monkeypatch.setattr(encoder, "_model", model, raising=False)
    monkeypatch.setattr(encoder, "_give_memory_back", lambda: given_back.append(held[0]() is None))
    gc.disable()
    try:
        with pytest.raises(OutOfMemory) as caught:
            encoder.encode({"input_ids": [[1]]})
    finally:
        gc.enable()
    assert given_back == [True]
    assert caught.value.__context__ is None


class Tensor:
    """Stands for one of torch's."""


class Failing(FakeEncoder):
    """At everything."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def encode(self, ids: Sequence[TokenIds]) -> list[Vector]:
        raise self._error


async def test_closing_lets_nobody_hang() -> None:
    """Who waits, and who is being computed, is cancelled."""
    thread = OnCall()
    busy = batcher(FakeEncoder(), thread, items=1)
    tasks = [asyncio.create_task(busy.encode([[1] * 9])) for _ in range(3)]
    await turns()
    await busy.close()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)


def test_efficiency_and_rates_are_told() -> None:
    """Real tokens by padded ones, and what was done in the last seconds; nothing of what is long
    past."""

    async def main() -> None:
        made = batcher(FakeEncoder(), items=2)
        await made.encode([[1] * 8, [1] * 10])
        told = made.gauges()
        assert told["padding_efficiency"] == pytest.approx(0.9)
        assert told["batch_items"] == 2
        await asyncio.sleep(5)
        told = made.gauges()
        assert told["tokens_per_s"] == pytest.approx(18 / 5, rel=0.01)
        assert told["items_per_s"] == pytest.approx(2 / 5, rel=0.01)
        await asyncio.sleep(60)
        assert made.gauges()["tokens_per_s"] == 0

    virtually(main)


def test_mixed_lengths_waste_little() -> None:
    """Of a thousand rows of log-normal length that wait together, less than a fifth of the cells
    are padding."""

    async def main() -> None:
        import random

        draw = random.Random(7)
        texts = [[1] * max(1, min(500, round(draw.lognormvariate(3.2, 0.8)))) for _ in range(1_000)]
        encoder = FakeEncoder()
        made = batcher(encoder, budget=2_048, items=512)
        await made.encode(texts)
        assert made.figures.tokens == sum(map(len, texts))
        assert made.figures.tokens / made.figures.padded > 0.8
        assert all(max(sizes) * len(sizes) <= 2_048 for sizes in encoder.sizes())

    virtually(main)
