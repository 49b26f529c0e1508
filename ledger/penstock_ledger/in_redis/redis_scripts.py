"""A typed stub per Lua script: arguments in, values out.

The steps themselves are explained on top of each script."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import chain
from typing import Any, Final

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
    SettledDead,
    SettledDone,
    SettledRetry,
    lately_of,
)
from penstock_ledger.model import ItemKey

# items per call: other clients wait a few milliseconds at most; Lua's stack ends near 8,000
BATCH_MAX: Final = 500
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


class Scripts:
    """Calls are atomic. Redis's own errors pass through (redis.RedisError)."""

    def __init__(self, client: redis.Redis) -> None:
        self._publish = _registered(client, "publish")
        self._begin = _registered(client, "begin")
        self._settle = _registered(client, "settle")
        self._put_off = _registered(client, "put_off")
        self._promote = _registered(client, "promote")
        self._unpark = _registered(client, "unpark")
        self._tags = _registered(client, "tags")
        self._rehydrate = _registered(client, "rehydrate")
        self._heartbeat = _registered(client, "heartbeat")
        self._present = _registered(client, "present")
        self._causes = _registered(client, "causes")
        self._note_queues = _registered(client, "note_queues")
        self._forget_queues = _registered(client, "forget_queues")
        self._note_found = _registered(client, "note_found")
        self._show_found = _registered(client, "show_found")
        self._move = _registered(client, "move")
        self._see = _registered(client, "see")
        self._lead = _registered(client, "lead")
        self._budget = _registered(client, "budget")
        self._owners = _registered(client, "owners")

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
        """Publish one feed's documents.

        Returns the epoch found instead when it is not ``epoch``.
        """
        scope = keys.feed_scope(*feed)
        fields = _Fields(before=5 + len(docs))
        entries = [
            (key.doc_id, position, *fields.place(key.doc_id, buckets)) for key, position, _ in docs
        ]
        arguments = [epoch, f"{scope}:done:", int(urgent), int(again), _packed(entries)]
        answer = self._publish(
            [keys.EPOCH, queue, f"{scope}:window"],
            [*arguments, *(doc.raw for doc in docs), *fields.arguments],
        )
        return answer if isinstance(answer, bytes) else PublishReport(*answer)

    def begin(self, items: Sequence[Begin], epoch: str, lane: str) -> list[Begun]:
        by_feed: dict[tuple[str, int], list[int]] = defaultdict(list)
        for number, (key, _, _) in enumerate(items):
            by_feed[key.job_id, key.generation].append(number)
        feeds, fields = list[tuple[Any, ...]](), _Fields(before=3)
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
        answer = self._begin(
            [keys.EPOCH, keys.EPOCH_REBUILT], [epoch, _packed(feeds), lane, *fields.arguments]
        )
        found = sorted(
            zip(chain.from_iterable(by_feed.values()), answer[::2], answer[1::2], strict=True)
        )
        return [Begun(_REPLIES[reply], crashes) for _, reply, crashes in found]

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
        new, *shown = self._settle([keys.EPOCH], [_packed(feeds), *fields.arguments])
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

    def causes(
        self,
        provider: str,
        entries: Iterable[tuple[str, int, float, float, str]],
        *,
        keep_s: int,
        gap_s: float,
        most: int,
    ) -> int:
        """Note causes and return how many are kept.

        Entries are field, count, since, last and text.
        """
        arguments: list[Argument] = [
            keep_s,
            gap_s,
            most,
            *(value for entry in entries for value in entry),
        ]
        kept: int = self._causes([keys.failing(provider)], arguments)
        return kept

    def note_queues(self, lane: str, most: int, queues: Sequence[str]) -> frozenset[str]:
        """Note the queues of a lane; returns those for which there was no room."""
        refused = self._note_queues([keys.queues(lane)], [most, *queues])
        return frozenset(name.decode() for name in refused)

    def forget_queues(self, lane: str, idle_s: int, most: int) -> int:
        return int(self._forget_queues([keys.queues(lane)], [idle_s, most]))

    def note_found(self, lane: str, home: str, most: int, queues: Sequence[str]) -> int:
        """Note queues of adapters that were found; returns how many are noted."""
        return int(self._note_found([keys.found(lane)], [home, most, *queues]))

    def show_found(self, home: str, waiting: int, believed_s: int) -> None:
        self._show_found([keys.found_waiting(home)], [waiting, believed_s])

    def move(
        self,
        lane: str,
        queue: str,
        messages: Sequence[tuple[str, bytes]],
        *,
        most: int,
        wait_s: float,
    ) -> int:
        names = [
            keys.queues(lane),
            keys.delayed(queue),
            keys.delayed_raw(queue),
            keys.delayed(lane),
            keys.delayed_raw(lane),
        ]
        moved = 0
        for at in range(0, len(messages), BATCH_MAX):
            pairs = [part for message in messages[at : at + BATCH_MAX] for part in message]
            moved += int(self._move(names, [queue, most, wait_s, *pairs]))
        return moved

    def lead(
        self,
        owner: str,
        lease_s: float,
        most: int,
        asked: Sequence[Sequence[Any]],
        released: Sequence[Sequence[str]],
    ) -> list[bytes | int]:
        """Ask for books, and end claims; ``asked``: book, idle time, digests, oldest answer (s).

        ``released``: book and digest."""
        found: list[bytes | int] = self._lead(
            [], [owner, lease_s, most, _packed((asked, released))]
        )
        return found

    def budget(self, job_id: str, asked: str, *arguments: Argument) -> list[bytes] | int:
        """Return the figures of a job's budget.

        They are spent, reserved, the least that was refused, whether it was reserved, and three
        figures of a tenant with a budget; a number where no budget is known, or what is known of
        the tenant has to be brought."""
        found: list[bytes] | int = self._budget([], [keys.job_scope(job_id), asked, *arguments])
        return found

    def owners(self, owner: str, lease_s: float) -> None:
        self._owners([keys.BUDGET_OWNERS], [owner, lease_s])


class _Fields:
    """Where documents stand in the completed set.

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


_packed = msgspec.msgpack.Encoder().encode


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


def _call(may_cost: MayCost | None) -> tuple[int, int, int, str] | bool:
    """Return what a call may cost, as begin.lua takes it."""
    if may_cost is None:
        return False
    return may_cost.paid, may_cost.estimate, int(may_cost.is_most), may_cost.owner


def _registered(client: redis.Redis, name: str) -> Any:
    return client.register_script("".join(map(_source, (*SHARED.get(name, ()), name))))


@cache
def _source(name: str) -> str:
    return (files("penstock_ledger") / "scripts" / f"{name}.lua").read_text("utf-8")
