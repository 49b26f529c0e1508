"""A typed stub per Lua script: arguments in, values out.

The steps themselves are explained on top of each script. Those of budgets, queues, answers and
causes are called by their books."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import chain, islice
from typing import Any, Final, TypeVar

import msgspec
import redis

from penstock_ledger import keys
from penstock_ledger.in_redis.batches import (
    Begin,
    BeginReply,
    Begun,
    Lately,
    MayCost,
    Publish,
    PublishReport,
    SettleBatch,
    SettledDead,
    SettledDone,
    SettledRetry,
    lately_of,
)
from penstock_ledger.model import ItemKey

# items per call: other clients wait a few milliseconds at most; Lua's stack ends near 8,000
BATCH_MAX: Final = 500
# of messages per call: Redis copies them while all other clients wait
PUBLISH_BYTES_MAX: Final = 4 * 1024 * 1024
# What is put before a script: functions that several have.
SHARED: Final = {
    "begin": ("table", "account"),
    "publish": ("purged", "urgent"),
    "promote": ("urgent",),
    "unpark": ("urgent",),
    "settle": ("purged", "sums", "lately", "account", "keep"),
    "put_off": ("purged", "sums", "lately", "account"),
    "budget": ("purged", "account"),
    "rehydrate": ("purged",),
}
TAGS_MAX: Final = 250  # raw messages looked at per call; each may hold 16 KiB

_REPLIES: Final = tuple(BeginReply)  # by their numbers

Argument = str | bytes | int | float
T = TypeVar("T")


class ItemScripts:
    """Calls what happens to items. Calls are atomic, and raise redis.RedisError."""

    def __init__(self, client: redis.Redis) -> None:
        self._publish = registered(client, "publish")
        self._begin = registered(client, "begin")
        self._settle = registered(client, "settle")
        self._put_off = registered(client, "put_off")
        self._promote = registered(client, "promote")
        self._unpark = registered(client, "unpark")
        self._tags = registered(client, "tags")
        self._rehydrate = registered(client, "rehydrate")

    def publish(
        self,
        queue: str,
        feed: tuple[str, int],
        docs: Sequence[Publish],
        buckets: int,
        epoch: str,
        urgent: bool,
        again: bool,
        rebuild: str,
    ) -> PublishReport | bytes:
        """Publish one feed's documents.

        Returns the epoch found instead when it is not ``epoch``, and an empty one where Redis was
        rebuilt after ``rebuild``, unless that is "*".
        """
        scope = keys.feed_scope(*feed)
        fields = _Fields(before=6 + len(docs))
        entries = [
            (key.doc_id, position, *fields.place(key.doc_id, buckets)) for key, position, _ in docs
        ]
        arguments = [epoch, f"{scope}:done:", int(urgent), int(again), packed(entries), rebuild]
        answer = self._publish(
            [keys.EPOCH, queue, f"{scope}:window", keys.EPOCH_NAME],
            [*arguments, *(doc.raw for doc in docs), *fields.arguments],
        )
        return answer if isinstance(answer, bytes) else PublishReport(*answer)

    def begin(
        self,
        items: Sequence[Begin],
        epoch: str,
        lane: str,
        call: tuple[str, str] | None,
        rebuilt: str,
    ) -> list[Begun]:
        by_feed: dict[tuple[str, int], list[int]] = defaultdict(list)
        for number, (key, _, _) in enumerate(items):
            by_feed[key.job_id, key.generation].append(number)
        feeds, fields = list[tuple[Any, ...]](), _Fields(before=5)
        for feed, numbers in by_feed.items():
            docs = [items[number].key.doc_id for number in numbers]
            places = [
                fields.place(doc_id, items[number].buckets)
                for number, doc_id in zip(numbers, docs, strict=True)
            ]
            calls = [_call(items[number].may_cost) for number in numbers]
            feeds.append(
                (*_scopes(feed), docs, *zip(*places, strict=True), *([calls] if any(calls) else []))
            )
        caller, name = call or ("", "")
        answer = self._begin(
            [
                keys.EPOCH,
                keys.EPOCH_REBUILT,
                keys.EPOCH_RUN,
                *([keys.begun(caller)] if call else []),
            ],
            [epoch, packed(feeds), lane, name, rebuilt, *fields.arguments],
        )
        found = sorted(
            zip(chain.from_iterable(by_feed.values()), answer[::2], answer[1::2], strict=True)
        )
        return [_begun(reply, crashes) for _, reply, crashes in found]

    def settle(
        self, done: Sequence[SettledDone], dead: Sequence[SettledDead]
    ) -> tuple[int, dict[tuple[str, int], Lately]]:
        """Settle finished items.

        Returns how many are new in the completed set, and the latest documents of each feed that
        has new ones."""
        by_feed: dict[tuple[str, int, bool], tuple[list[str], list[tuple[Any, ...]]]] = {}
        fields = _Fields(before=1)
        finished: Iterable[tuple[Any, ...]] = chain(done, dead)
        for key, buckets, why, *figures, has_budget in finished:
            docs, items = by_feed.setdefault((key.job_id, key.generation, has_budget), ([], []))
            docs.append(key.doc_id)
            items.append(
                (
                    *fields.place(key.doc_id, buckets),
                    why if isinstance(why, str) else int(why),
                    *figures,
                )
            )
        feeds = [
            (*_scopes((job_id, generation)), docs, items, *([True] if has_budget else []))
            for (job_id, generation, has_budget), (docs, items) in by_feed.items()
        ]
        new, *shown = self._settle([keys.EPOCH], [packed(feeds), *fields.arguments])
        return int(new), _lately({(job_id, generation) for job_id, generation, _ in by_feed}, shown)

    def put_off(
        self,
        retries: Sequence[SettledRetry],
        released: Sequence[ItemKey],
        paid: Mapping[ItemKey, int],
    ) -> tuple[int, dict[tuple[str, int], Lately]]:
        """Put items off.

        Returns how many are new in the delayed set, and the latest documents of each feed that has
        new ones."""
        arguments: list[Argument] = [len(retries), len(released)]
        for retry in retries:
            arguments += _retry(retry)
        for key in released:
            job = keys.job_scope(key.job_id) if key in paid else ""
            arguments += (
                keys.feed_scope(key.job_id, key.generation),
                key.doc_id,
                job,
                paid.get(key, 0),
            )
        delayed, *shown = self._put_off([keys.EPOCH], arguments)
        return int(delayed), _lately(
            {(retry.key.job_id, retry.key.generation) for retry in retries}, shown
        )

    def promote(
        self, queue: str, queues: Sequence[str], limit: int, held_s: float, longest_s: float
    ) -> int:
        """Bring due messages into the queue.

        ``queues`` are those whose workers may hold the messages, here and below.
        """
        names = [keys.delayed(queue), keys.delayed_raw(queue), queue, keys.delayed_clock(queue)]
        return int(self._promote([*names, *map(keys.unacked, queues)], [limit, held_s, longest_s]))

    def unpark(self, job_id: str, queue: str, queues: Sequence[str], limit: int) -> int:
        names = [f"{keys.job_scope(job_id)}:parked", queue, *map(keys.unacked, queues)]
        return int(self._unpark(names, [limit]))

    def tags(self, name: str, first: int, last: int) -> tuple[int, list[bytes]]:
        """Return how many messages there are between the two indices, and their tags."""
        seen, *tags = self._tags([name], [first, last])
        return int(seen), tags

    def rehydrate(
        self, feed: tuple[str, int], docs: Iterable[tuple[str, bool]], buckets: int
    ) -> int:
        scope = keys.feed_scope(*feed)
        arguments: list[Argument] = [f"{scope}:done:"]
        for doc_id, dead in docs:
            field = keys.done_field(doc_id)
            arguments += (
                keys.done_bucket(field, buckets),
                field,
                doc_id,
                keys.DEAD if dead else keys.DONE,
            )
        return int(self._rehydrate([f"{scope}:window", f"{scope}:starts"], arguments))


class FleetScripts:
    """The calls that look at a fleet. They are atomic, and raise redis.RedisError."""

    def __init__(self, client: redis.Redis) -> None:
        self._see = registered(client, "see")
        self._heartbeat = registered(client, "heartbeat")
        self._present = registered(client, "present")

    def see(self, jobs: Sequence[tuple[str, int]]) -> list[Any]:
        """Return state, lane, messages parked and sizes of the windows of each job, in order.

        The windows are those of its newest generation."""
        arguments: list[Argument] = []
        for job_id, generation in jobs:
            arguments += (keys.job_scope(job_id), generation)
        found: list[Any] = self._see([], arguments)
        return found

    def heartbeat(self, name: str, forget_s: int, info: Mapping[str, str]) -> None:
        pairs = [text for pair in info.items() for text in pair]
        self._heartbeat([keys.WORKERS, keys.worker(name)], [name, forget_s, *pairs])

    def present(self, name: str, forget_s: float) -> int:
        return int(self._present([keys.CONTROLS], [name, forget_s]))


class _Fields:
    """The places of documents in the completed set.

    Fields that are not text travel as arguments behind ``before`` others: Redis's msgpack does not
    read binary."""

    def __init__(self, before: int) -> None:
        self.arguments: list[bytes] = []
        self._before = before

    def place(self, doc_id: str, buckets: int) -> tuple[int, int | bool]:
        """Return the bucket of a document, and its field as the scripts take it.

        That is false for the id itself, else the argument's index."""
        raw = doc_id.encode()
        if len(raw) <= keys.MAX_FIELD_BYTES:
            return keys.done_bucket(raw, buckets), False
        field = keys.done_field(doc_id)
        self.arguments.append(field)
        return keys.done_bucket(field, buckets), self._before + len(self.arguments)


def _scopes(feed: tuple[str, int]) -> tuple[str, str]:
    """Return the prefix of the job and that of the feed."""
    return keys.job_scope(feed[0]), keys.feed_scope(*feed)


packed = msgspec.msgpack.Encoder().encode


def _place(key: ItemKey, buckets: int) -> tuple[Argument, ...]:
    """Return the job prefix, feed prefix, bucket, field and document id."""
    field = keys.done_field(key.doc_id)
    return (
        *_scopes((key.job_id, key.generation)),
        keys.done_bucket(field, buckets),
        field,
        key.doc_id,
    )


def _retry(retry: SettledRetry) -> tuple[Argument, ...]:
    return (
        *_place(retry.key, retry.buckets),
        keys.delayed(retry.queue),
        retry.tag,
        retry.raw,
        retry.after_s,
        int(retry.rate_limited),
        retry.reason,
        retry.prompt_tokens,
        retry.completion_tokens,
        retry.cost_microusd,
        retry.calls,
        int(retry.has_budget),
        int(retry.refused_first),
    )


def _lately(
    feeds: Collection[tuple[str, int]], shown: Sequence[Any]
) -> dict[tuple[str, int], Lately]:
    """Read what lately.lua shows: a prefix, and two lists of fields and values, for each feed."""
    by_scope = {keys.feed_scope(*feed).encode(): feed for feed in feeds}
    return {
        by_scope[scope]: lately_of(*(dict(zip(of[::2], of[1::2], strict=True)) for of in stretches))
        for scope, *stretches in zip(shown[::3], shown[1::3], shown[2::3], strict=True)
    }


def _begun(reply: int, crashes: int | bytes) -> Begun:
    if isinstance(crashes, bytes):
        return Begun(BeginReply.REBUILT, 0, rebuilt=crashes.decode())
    if reply == BeginReply.UNSURE:
        return Begun(BeginReply.GO, crashes, is_sure=False)
    return Begun(_REPLIES[reply], crashes)


def _call(may_cost: MayCost | None) -> tuple[int, int, int, str] | bool:
    """Return what a call may cost, as begin.lua takes it."""
    if may_cost is None:
        return False
    return may_cost.paid, may_cost.estimate, int(may_cost.is_most), may_cost.owner


def registered(client: redis.Redis, name: str) -> Any:
    """Return a script, with what it shares with others put before it."""
    return client.register_script("".join(map(_source, (*SHARED.get(name, ()), name))))


@cache
def _source(name: str) -> str:
    return (files("penstock_ledger") / "scripts" / f"{name}.lua").read_text("utf-8")


# -- long batches are cut, so that Redis serves others in between ---------------------------------


def chunks(items: Iterable[T], size: int = BATCH_MAX) -> Iterator[list[T]]:
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


def feed_chunks(docs: Iterable[Publish]) -> Iterator[tuple[tuple[str, int], list[Publish]]]:
    """Yield runs of one feed, at most BATCH_MAX documents and about PUBLISH_BYTES_MAX bytes."""
    feed, chunk, size = ("", 0), list[Publish](), 0
    for doc in docs:
        its_feed = (doc.key.job_id, doc.key.generation)
        if chunk and (
            its_feed != feed or len(chunk) == BATCH_MAX or size + len(doc.raw) > PUBLISH_BYTES_MAX
        ):
            yield feed, chunk
            chunk, size = [], 0
        feed = its_feed
        chunk.append(doc)
        size += len(doc.raw)
    if chunk:
        yield feed, chunk


def until_short(limit: int, step: Callable[[int], int]) -> int:
    """Repeat ``step`` until ``limit`` is reached, or less was moved than asked for.

    It gets at most BATCH_MAX."""
    moved = 0
    while moved < limit:
        asked = min(BATCH_MAX, limit - moved)
        now_moved = step(asked)
        moved += now_moved
        if now_moved < asked:
            break
    return moved


def settle_chunks(batch: SettleBatch, size: int) -> Iterator[SettleBatch]:
    """Yield ``batch`` in parts of at most ``size`` items."""
    parts = (batch.done, batch.dead, batch.retries, batch.released)
    total = sum(map(len, parts))
    if total <= size:
        if total:
            yield batch
        return
    for start in range(0, len(batch.done), size):
        yield SettleBatch(done=batch.done[start : start + size])
    for start in range(0, len(batch.dead), size):
        yield SettleBatch(dead=batch.dead[start : start + size])
    for start in range(0, len(batch.retries), size):
        yield SettleBatch(retries=batch.retries[start : start + size])
    for start in range(0, len(batch.released), size):
        yield SettleBatch(released=batch.released[start : start + size], paid=batch.paid)
