"""A shard: a source that ends at one of its own cursors.

It asks of a source what resuming asks, too: a row has the same cursor each time it is read, and no
other row has it. Where the row at the end is gone, the shard goes on to the end of the source; what
other shards have fed is dropped by the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock_producer.rows import BadRow, Document, Source


class Until:
    """The rows of ``source`` up to and with the one whose cursor is ``ends_at``."""

    def __init__(self, source: Source, ends_at: Mapping[str, Any]) -> None:
        self._source = source
        self._ends_at = dict(ends_at)

    def pin(self) -> dict[str, Any]:
        return self._source.pin()

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        if cursor == self._ends_at:
            return
        for row in self._source.documents(cursor):
            yield row
            if row.cursor == self._ends_at:
                return

    def fetch(self, position: str) -> Document:
        return self._source.fetch(position)

    def ended(self) -> bool:
        return self._source.ended()

    def mark_published(self, documents: Sequence[Document]) -> None:
        self._source.mark_published(documents)
