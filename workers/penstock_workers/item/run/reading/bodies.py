"""Request bodies that travel by reference: read again from the pinned source (or the spool) by the
worker itself."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from penstock_ledger import Database
from penstock_producer.errors import BadReference, seen
from penstock_producer.sources import Source
from penstock_producer.sources.of_feed import open_feed_source
from penstock_workers.item.attempt import Item
from penstock_workers.settings import WorkerSettings

SOURCES_KEPT = 32  # open files or connections, one per generation of a job


class Bodies:
    """A bounded set of open sources, read in threads so that the loop never waits for a disk."""

    def __init__(self, database: Database, settings: WorkerSettings) -> None:
        self._database = database
        self._settings = settings
        self._sources: OrderedDict[tuple[str, int], Source] = OrderedDict()

    async def fetch(self, item: Item) -> bytes:
        """Raises SourceUnavailable, SourceChanged, and BadReference for a place where this document
        is not."""
        assert item.message.ref is not None, "a message holds a body or a reference"
        return await asyncio.to_thread(self._read, item, item.message.ref)

    def _read(self, item: Item, position: str) -> bytes:
        document = self._source(item).fetch(position)
        if document.doc_id != item.key.doc_id:
            raise BadReference(
                f"{seen(position)} is another document's place in the source of {item.key.job_id}"
            )
        return document.body

    def _source(self, item: Item) -> Source:
        name = (item.key.job_id, item.key.generation)
        source = self._sources.get(name)
        if source is None:
            source = self._sources[name] = open_feed_source(self._database, *name, self._settings)
            if len(self._sources) > SOURCES_KEPT:
                self._sources.popitem(last=False)
        return source
