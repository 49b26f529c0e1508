"""The body of `POST /v1/messages/batches`, from the connection into a file: memory holds a piece of
it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from penstock_gateway.backend import Backend
from penstock_gateway.callers.shares import Incoming, Shares
from penstock_gateway.files.form import BATCH_LIVES_S
from penstock_gateway.files.store import FileStore
from penstock_gateway.messages.reader import RequestReader
from penstock_gateway.refused import Refused
from penstock_ledger import DoorFile

__all__ = ["PURPOSE", "taken_in"]

PURPOSE: Final = "message_batch"  # of the file; no upload has it
PIECE: Final = 1024 * 1024  # bytes that are looked at together


async def taken_in(
    backend: Backend, body: AsyncIterator[bytes], tenant: str | None, name: str
) -> tuple[DoorFile, int]:
    """The file, and how many requests it has. Raises Refused; nothing stays then."""
    room = await backend.run(FileStore(backend.settings, backend.database).room_of, tenant)
    with backend.part(Shares).upload(tenant, room) as incoming:
        return await _written(backend, body, tenant, name, incoming)


async def _written(
    backend: Backend, body: AsyncIterator[bytes], tenant: str | None, name: str, incoming: Incoming
) -> tuple[DoorFile, int]:
    door = backend.settings.gateway.batches
    reader = RequestReader(door.messages_max_requests, backend.settings.max_body_bytes)
    store = FileStore(backend.settings, backend.database)
    writing = await backend.run(store.begin, tenant)
    size, held = 0, bytearray()

    def write(piece: bytes) -> None:
        for line in reader.feed(piece):
            writing.write(line)

    try:
        async for chunk in body:
            size += len(chunk)
            if size > door.messages_max_bytes:
                told = (
                    f"Request exceeds the maximum size of {door.messages_max_bytes / 1024**2:g} MB."
                )
                raise Refused(413, told, code="request_too_large")
            incoming.grow_to(size)
            held += chunk
            if len(held) >= PIECE:
                await backend.run(write, bytes(held))
                held.clear()
        await backend.run(write, bytes(held))
        requests = reader.finish()
        finish = partial(writing.finish, f"{name}.jsonl", PURPOSE, BATCH_LIVES_S, lines=requests)
        return await backend.run(finish), requests
    except BaseException:
        await backend.run(writing.discard)
        raise
