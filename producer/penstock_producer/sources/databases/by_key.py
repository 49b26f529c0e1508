"""Rows by their keys, with bounded memory whatever they hold.

A page of rows is asked for with a limit on each, so that all of them together are small. Those that
are longer come without their values, and are asked for again, few at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from sqlalchemy import Executable

from penstock_producer.sources.databases.columns import Column
from penstock_producer.sources.databases.keys import Key
from penstock_producer.sources.databases.relation import Row

__all__ = ["ROWS", "Ask", "RowsByKey"]

ROWS: Final = 2_000  # asked for at once
BYTES: Final = 16 * 1024 * 1024  # of their values
SHORT: Final = BYTES // ROWS  # of a row that comes with its page

Ask = Callable[[Executable, Mapping[str, Any]], Sequence[Any]]


class Keyed(Protocol):
    """What rows are asked of by their keys."""

    def rows_statement(self, columns: Sequence[Column]) -> Executable: ...

    def parameters(self, keys: Sequence[Key], most: int) -> Mapping[str, Any]: ...


class RowsByKey:
    """``columns`` are those that are read; a row of more than ``max_bytes`` has no values."""

    def __init__(self, relation: Keyed, columns: Sequence[Column], max_bytes: int) -> None:
        self.columns = columns
        self._relation = relation
        self._statement = relation.rows_statement(columns)
        self._max_bytes = max_bytes

    def one(self, ask: Ask, key: Key) -> Row | None:
        """None where there is no row with this key."""
        return self._asked(ask, [key], self._max_bytes).get(key)

    def some(self, ask: Ask, keys: Sequence[Key]) -> Iterator[Row | None]:
        """As many as there are keys, of which ROWS may come at once, in their order; None also for
        a key that is none."""
        wanted = [key for key in keys if key is not None]
        rows = self._asked(ask, wanted, min(SHORT, self._max_bytes)) if wanted else {}
        groups = self._groups(wanted, rows)
        held: Mapping[Key, Row] = {}
        for key in keys:
            row = rows.get(key)
            if row is not None and self._is_left_out(row):
                if key not in held:
                    held = self._asked(ask, next(groups), self._max_bytes)
                row = held.get(key)
            yield row

    def _groups(self, keys: Sequence[Key], rows: Mapping[Key, Row]) -> Iterator[list[Key]]:
        """The keys of rows to be asked for again."""
        group: list[Key] = []
        size = 0
        for key in keys:
            row = rows.get(key)
            if row is None or not self._is_left_out(row):
                continue
            if group and size + row.size > BYTES:
                yield group
                group, size = [], 0
            group.append(key)
            size += row.size
        if group:
            yield group

    def _is_left_out(self, row: Row) -> bool:
        """Whether its values did not come, and may."""
        return row.values is None and row.size <= self._max_bytes

    def _asked(self, ask: Ask, keys: Sequence[Key], most: int) -> dict[Key, Row]:
        found = ask(self._statement, self._relation.parameters(keys, most))
        return {key: Row(size, values if size <= most else None) for key, size, *values in found}
