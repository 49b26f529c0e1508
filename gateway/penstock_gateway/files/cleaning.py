"""Files end by themselves: those whose time is over, and what uploads that never ended have left
behind."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from penstock_gateway.backend import Backend
from penstock_gateway.files.store import FileStore
from penstock_gateway.files.uploads import UPLOAD_MAX_S
from penstock_producer import SinkError

__all__ = ["FileCleaning"]

log = logging.getLogger("penstock.gateway")

LOOK_EVERY_S: Final = 60.0
AT_ONCE: Final = 100  # files of one step
# An upload has ended long before; a list that goes on behind a deleted file has been read to its
# end.
LEFT_AFTER_S: Final = UPLOAD_MAX_S + 3600


class FileCleaning:
    """Any number of replicas may do this at once: a row is hidden once, and bytes that are gone
    stay gone."""

    async def run(self, backend: Backend) -> None:
        store = FileStore(backend.settings, backend.database)
        while True:
            while await backend.run(expire, store) or await backend.run(forget, store):
                pass
            backend.round_done(self)
            await asyncio.sleep(LOOK_EVERY_S)


def expire(store: FileStore) -> bool:
    """Remove files whose time is over; whether there may be more."""
    over = store.rows.expire(AT_ONCE)
    for file in over:
        _remove(store, file.place)  # what does not go now goes with its row
    if over:
        log.info("%d files have reached their expires_at and are removed", len(over))
    return len(over) == AT_ONCE


def forget(store: FileStore, *, left_after_s: float = LEFT_AFTER_S) -> bool:
    """Remove what deleted files and unfinished uploads have left; whether there may be more."""
    left = store.rows.deleted_before(time.time() - left_after_s, AT_ONCE)
    gone = [file.file_id for file in left if _remove(store, file.place)]
    if gone:
        store.rows.forget(gone)
    return len(gone) == AT_ONCE


def _remove(store: FileStore, place: str) -> bool:
    try:
        store.remove_bytes(place)
    except (SinkError, OSError) as error:
        log.warning(
            "the bytes of a deleted file cannot be removed now, and will be tried again: %s", error
        )
        return False
    return True
