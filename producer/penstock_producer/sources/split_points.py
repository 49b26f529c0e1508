"""Where a source can be split: cursors that the survey passed, evenly spread over rows that it did
not know the number of."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

from penstock_ledger.model import Shard

__all__ = ["SplitPoints"]

POINTS_KEPT: Final = 1_024
"""Far more than a source has shards, so that these differ by a few per cent in size."""


class SplitPoints:
    """Cursors by the number of rows before them.

    Each time there are too many, every second one goes."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[str, Any]] = {}
        self._spacing = 1

    def note(self, rows: int, cursor: Mapping[str, Any]) -> int:
        """``cursor`` is that of row number ``rows``; returns the number of the next row whose
        cursor is wanted."""
        self._kept[rows] = dict(cursor)
        if len(self._kept) > POINTS_KEPT:
            self._spacing *= 2
            self._kept = {
                before: kept for before, kept in self._kept.items() if before % self._spacing == 0
            }
        return rows - rows % self._spacing + self._spacing

    def split(self, rows: int, number: int) -> tuple[Shard, ...]:
        """``number`` shards of nearly equal size of a source with ``rows``, fewer of a small one;
        none where it would be one."""
        within = [before for before in self._kept if before < rows]
        if number < 2 or not within:
            return ()
        ends = {
            min(within, key=lambda before: abs(before - place)) for place in _even(rows, number)
        }
        borders = [{}, *(self._kept[before] for before in sorted(ends)), None]
        return tuple(Shard(begin or {}, end) for begin, end in pairwise(borders))


def _even(rows: int, number: int) -> list[float]:
    return [rows * part / number for part in range(1, number)]
