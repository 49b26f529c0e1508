"""A typed stub per Lua script: arguments in, values out. The steps themselves are explained on top of each script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec
import redis

from penstock_ledger import keys
from penstock_ledger.batches import (
    Begin,
    BeginReply,
    Begun,
    Publish,
    PublishReport,
    SettleBatch,
    SettledDead,
    SettledDone,
    SettledRetry,
    SettleReport,
)
from penstock_ledger.model import ItemKey

BATCH_MAX: Final = 500  # items per call: other clients wait a few milliseconds at most; Lua's stack ends near 8,000
URGENT_AWARE: Final = frozenset({"publish", "promote", "unpark"})  # scripts that urgent.lua is put before
TAGS_MAX: Final = 250  # raw messages looked at per call; each may hold 16 KiB

Argument = str | bytes | int | float


class Scripts:
    """Calls are atomic. Redis's own errors pass through (redis.RedisError)."""

    def __init__(self, client: redis.Redis) -> None:
        self._publish = _registered(client, "publish")
        self._begin = _registered(client, "begin")
        self._settle = _registered(client, "settle")
        self._promote = _registered(client, "promote")
        self._unpark = _registered(client, "unpark")
        self._tags = _registered(client, "tags")
        self._rehydrate = _registered(client, "rehydrate")
        self._heartbeat = _registered(client, "heartbeat")
        self._causes = _registered(client, "causes")
        self._note_queues = _registered(client, "note_queues")
        self._forget_queues = _registered(client, "forget_queues")
        self._move = _registered(client, "move")

    def publish(
        self,
        queue: str,
        feed: tuple[str, int],
        docs: Sequence[Publish],
        buckets: int,
        epoch: str,
        urgent: bool,
        again: bool,
    ) -> PublishReport | bytes:
        """One feed's documents. Returns the epoch found instead when it is not ``epoch``."""
        scope = keys.feed_scope(*feed)
        entries, fields = _publish_entries(docs, buckets)
        arguments = [epoch, f"{scope}:done:", int(urgent), int(again), msgspec.msgpack.encode(entries)]
        answer = self._publish(
            [keys.EPOCH, queue, f"{scope}:window"], [*arguments, *(doc.raw for doc in docs), *fields]
        )
        return answer if isinstance(answer, bytes) else PublishReport(*answer)

    def begin(self, items: Sequence[Begin], epoch: str) -> list[Begun]:
        arguments: list[Argument] = [epoch]
        for key, buckets in items:
            arguments += _place(key, buckets)
        answer = self._begin([keys.EPOCH, keys.EPOCH_REBUILT], arguments)
        return [Begun(BeginReply(answer[i]), answer[i + 1]) for i in range(0, len(answer), 2)]

    def settle(self, batch: SettleBatch) -> SettleReport:
        finished = len(batch.done) + len(batch.dead)
        arguments: list[Argument] = [finished, len(batch.retries), len(batch.released)]
        for done in batch.done:
            arguments += _done(done)
        for dead in batch.dead:
            arguments += _dead(dead)
        for retry in batch.retries:
            arguments += _retry(retry)
        for key in batch.released:
            arguments += (keys.feed_scope(key.job_id, key.generation), key.doc_id)
        return SettleReport(*self._settle([keys.EPOCH], arguments))

    def promote(self, queue: str, queues: Sequence[str], limit: int, held_s: float, longest_s: float) -> int:
        """``queues`` are those whose workers may hold the messages, here and below."""
        names = [keys.delayed(queue), keys.delayed_raw(queue), queue, keys.delayed_clock(queue)]
        return int(self._promote([*names, *map(keys.unacked, queues)], [limit, held_s, longest_s]))

    def unpark(self, job_id: str, queue: str, queues: Sequence[str], limit: int) -> int:
        names = [f"{keys.job_scope(job_id)}:parked", queue, *map(keys.unacked, queues)]
        return int(self._unpark(names, [limit]))

    def tags(self, name: str, first: int, last: int) -> tuple[int, list[bytes]]:
        """How many messages there are between the two indices, and their tags."""
        seen, *tags = self._tags([name], [first, last])
        return int(seen), tags

    def rehydrate(self, feed: tuple[str, int], docs: Iterable[tuple[str, bool]], buckets: int) -> int:
        scope = keys.feed_scope(*feed)
        arguments: list[Argument] = [f"{scope}:done:"]
        for doc_id, dead in docs:
            field = keys.done_field(doc_id)
            arguments += (keys.done_bucket(field, buckets), field, doc_id, keys.DEAD if dead else keys.DONE)
        return int(self._rehydrate([f"{scope}:window", f"{scope}:starts"], arguments))

    def heartbeat(self, name: str, forget_s: int, info: Mapping[str, str]) -> None:
        pairs = [text for pair in info.items() for text in pair]
        self._heartbeat([keys.WORKERS, keys.worker(name)], [name, forget_s, *pairs])

    def causes(
        self,
        provider: str,
        entries: Iterable[tuple[str, int, float, float, str]],
        *,
        keep_s: int,
        gap_s: float,
        most: int,
    ) -> int:
        """Entries: field, count, since, last, text. Returns how many are kept."""
        arguments: list[Argument] = [keep_s, gap_s, most, *(value for entry in entries for value in entry)]
        kept: int = self._causes([keys.failing(provider)], arguments)
        return kept

    def note_queues(self, lane: str, most: int, queues: Sequence[str]) -> frozenset[str]:
        """Returns those for which there was no room."""
        refused = self._note_queues([keys.queues(lane)], [most, *queues])
        return frozenset(name.decode() for name in refused)

    def forget_queues(self, lane: str, idle_s: int, most: int) -> int:
        return int(self._forget_queues([keys.queues(lane)], [idle_s, most]))

    def move(self, lane: str, queue: str, messages: Sequence[tuple[str, bytes]], *, most: int, wait_s: float) -> int:
        names = [
            keys.queues(lane), keys.delayed(queue), keys.delayed_raw(queue), keys.delayed(lane), keys.delayed_raw(lane)
        ]  # fmt: skip
        moved = 0
        for at in range(0, len(messages), BATCH_MAX):
            pairs = [part for message in messages[at : at + BATCH_MAX] for part in message]
            moved += int(self._move(names, [queue, most, wait_s, *pairs]))
        return moved


_PUBLISH_HEAD: Final = 5  # arguments of publish.lua before the messages


def _publish_entries(docs: Sequence[Publish], buckets: int) -> tuple[list[tuple[str | int, ...]], list[bytes]]:
    """What publish.lua gets for each document beside its message, and the fields of those that need one of their own."""
    entries: list[tuple[str | int, ...]] = []
    fields: list[bytes] = []
    for key, position, _ in docs:
        doc_id = key.doc_id
        field = keys.done_field(doc_id)
        bucket = keys.done_bucket(field, buckets)
        if field == doc_id.encode():
            entries.append((doc_id, position, bucket))
        else:
            fields.append(field)
            entries.append((doc_id, position, bucket, _PUBLISH_HEAD + len(docs) + len(fields)))
    return entries, fields


def _place(key: ItemKey, buckets: int) -> tuple[Argument, ...]:
    """Job prefix, feed prefix, bucket, field, document id: how every item starts in begin.lua and settle.lua."""
    job_id, generation, doc_id = key
    field = keys.done_field(doc_id)
    scope = keys.job_scope(job_id)
    return scope, f"{scope}:{generation}", keys.done_bucket(field, buckets), field, doc_id


def _done(done: SettledDone) -> tuple[Argument, ...]:
    key, buckets, after_retry, *figures = done
    return *_place(key, buckets), keys.DONE, int(after_retry), *figures


def _dead(dead: SettledDead) -> tuple[Argument, ...]:
    key, buckets, reason, *figures = dead
    return *_place(key, buckets), keys.DEAD, reason, *figures


def _retry(retry: SettledRetry) -> tuple[Argument, ...]:
    return (
        *_place(retry.key, retry.buckets),
        keys.delayed(retry.queue),
        retry.tag,
        retry.raw,
        retry.after_s,
        int(retry.rate_limited),
        retry.prompt_tokens,
        retry.completion_tokens,
        retry.cost_microusd,
        retry.calls,
    )


def _registered(client: redis.Redis, name: str) -> Any:
    before = _source("urgent") if name in URGENT_AWARE else _source("table") if name == "begin" else ""
    return client.register_script(before + _source(name))


@cache
def _source(name: str) -> str:
    return (files("penstock_ledger") / "scripts" / f"{name}.lua").read_text("utf-8")
