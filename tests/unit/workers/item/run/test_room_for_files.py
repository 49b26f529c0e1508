"""Requests with files in them are read as far as there is room for them in the process."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from attempts import make_attempt

from penstock_ledger.model import ItemKey
from penstock_producer.feed.wire import ItemMessage
from penstock_producer.job.endpoints import UPLOAD_BODY_BYTES
from penstock_producer.job.spec import JobSpec
from penstock_workers.item.attempt import Attempt, Item
from penstock_workers.item.deliveries import Delivery
from penstock_workers.item.run.reading import FILES_BYTES, Reads
from penstock_workers.item.slots import ItemWaits

LARGEST = bytes(UPLOAD_BODY_BYTES)
FIT = FILES_BYTES // UPLOAD_BODY_BYTES
FILES = JobSpec(model="m", prompt="Look", image_fields=["photo"])
TEXT = JobSpec(model="m", prompt="Say")


class Bodies:
    """Hands out large bodies, and counts them."""

    def __init__(self) -> None:
        self.read = 0

    async def fetch(self, _: Item) -> bytes:
        self.read += 1
        return LARGEST


def item(number: int) -> Item:
    delivery = Delivery(f"job:{number}", {}, {}, retries=0, queue="penstock.api")
    return Item.of(delivery, ItemMessage(ItemKey("job", 1, str(number)), None, None))


async def turns(number: int = 50) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_large_requests_wait_for_room_and_others_do_not() -> None:
    """The next is read when one before it is settled; texts pass by. An attempt keeps the room of
    its item."""
    bodies, waits = Bodies(), ItemWaits(64)
    reads = Reads(cast(Any, object()), cast(Any, bodies), waits.others)
    items = [item(number) for number in range(FIT + 2)]
    tasks = [asyncio.create_task(reads.body(one, FILES)) for one in items]
    await turns()
    assert bodies.read == FIT
    assert len(waits.others) == 2, "who waits counts as waiting, for a drain"
    await reads.body(item(99), TEXT)
    assert bodies.read == FIT + 1
    attempt = Attempt.at(items[0], make_attempt(model="m").job, LARGEST)
    del items[0]
    await turns()
    assert bodies.read == FIT + 1
    del attempt
    await turns()
    assert bodies.read == FIT + 2
    for one in items:
        if one.files_room is not None:
            one.files_room.release()
    await asyncio.gather(*tasks)
    assert bodies.read == FIT + 3
