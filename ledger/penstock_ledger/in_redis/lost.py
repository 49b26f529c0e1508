"""A fed document is lost when its message is not in any place where one can be.

Places are read in the direction in which messages move, queue -> unacked -> delayed -> parked, so
that one that moves during the look is seen at its next place. A message that goes back to the queue
meanwhile can still be missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from penstock_ledger import keys
from penstock_ledger.in_redis.redis_scripts import TAGS_MAX, ItemScripts, chunks
from penstock_ledger.model import ItemKey


def find_missing(
    client: Any, scripts: ItemScripts, queues: Sequence[str], wanted: dict[str, ItemKey]
) -> list[ItemKey]:
    """Return the items among ``wanted`` (by tag) without a message.

    ``queues`` are all of their lane. Time grows with the window and the queues."""
    lost = dict(wanted)
    for queue in queues:
        _drop(lost, _listed_tags(scripts, queue))
    # workers of before the last upgrade may hold some
    held = [*map(keys.unacked, queues), keys.OLDER_UNACKED]
    for unacked in held:
        _drop(lost, _held(client, unacked, list(lost)))
    for queue in queues:
        _drop(lost, _delayed(client, queue, list(lost)))
    for job_id in {key.job_id for key in lost.values()}:
        _drop(lost, _listed_tags(scripts, f"{keys.job_scope(job_id)}:parked"))
    return list(lost.values())


def held_by(client: Any, queues: Sequence[str], wanted: dict[str, ItemKey]) -> set[ItemKey]:
    """Return those of ``wanted`` (by tag) whose messages are with workers of these queues.

    There may be one for each of many models: where workers hold fewer messages than are asked for,
    their tags are read instead of asking for each.
    """
    names = [*map(keys.unacked, queues)]
    with client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.hlen(name)
        sizes = pipe.execute()
    left, found = dict(wanted), set[ItemKey]()
    for name, size in zip(names, sizes, strict=True):
        if not size or not left:
            continue
        tags = _held(client, name, list(left)) if size > len(left) else _all_held(client, name)
        found |= {left.pop(tag) for tag in tags if tag in left}
    return found


def _drop(lost: dict[str, ItemKey], found: Iterable[str]) -> None:
    for tag in found:
        lost.pop(tag, None)


def _listed_tags(scripts: ItemScripts, name: str) -> Iterator[str]:
    """Yield the tags of a list that grows at its left while it is read.

    Messages shift towards the reader, so none is passed over.

    The end is where it was when the walk began or later; kombu consumes there, and then the walk
    ends earlier.
    """
    first = 0
    while True:
        seen, tags = scripts.tags(name, first, first + TAGS_MAX - 1)
        yield from (tag.decode() for tag in tags)
        if seen < TAGS_MAX:
            return
        first += seen


def _held(client: Any, unacked: str, tags: Sequence[str]) -> list[str]:
    found: list[str] = []
    for chunk in chunks(tags):
        with client.pipeline(transaction=False) as pipe:
            for tag in chunk:
                pipe.hexists(unacked, tag)
            found += [tag for tag, held in zip(chunk, pipe.execute(), strict=True) if held]
    return found


def _all_held(client: Any, unacked: str) -> set[str]:
    return {tag.decode("utf-8", "replace") for tag in client.hkeys(unacked)}


def _delayed(client: Any, queue: str, tags: Sequence[str]) -> list[str]:
    found: list[str] = []
    for chunk in chunks(tags):
        scores = client.zmscore(keys.delayed(queue), chunk)
        found += [tag for tag, score in zip(chunk, scores, strict=True) if score is not None]
    return found
