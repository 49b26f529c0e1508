"""A table that is the source's own rows plus an answer: pure, and the same for every door.

The source's columns keep their names, their order and their values. The columns of the outcomes
(tables/columns.py) go behind them, under names that the source does not have; their `id` is left
out, since the source has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from penstock_producer.tables.columns import Column, Row

__all__ = ["ANSWER", "Added", "added_columns", "joined", "row_id"]

ANSWER: Final = "answer"
"""What the column `text` of the outcomes is called beside a source's, which has texts itself."""

PAGE: Final = 500
"""Rows whose outcomes are looked up at once."""


class Added(NamedTuple):
    """One column that a joined table has beside the source's."""

    at: int  # its place in a row of the outcomes
    column: Column  # under the name that it has in the joined table


def row_id(number: int) -> str:
    """Return the id of a row without one; the first is number 1."""
    return str(number)


def added_columns(source: Iterable[str], outcomes: Sequence[Column]) -> list[Added]:
    """Return the columns of the outcomes as a table has them that begins with the source's.

    A name that the source has, upper and lower case alike, gets `answer_` in front.
    """
    taken = {name.casefold() for name in source}
    added = []
    for at, column in enumerate(outcomes):
        if column.name == "id":
            continue
        name = ANSWER if column.name == "text" else column.name
        while name.casefold() in taken:
            name = f"answer_{name}"
        taken.add(name.casefold())
        added.append(Added(at, Column(name, column.kind)))
    return added


def joined(
    rows: Iterable[tuple[str, Sequence[Any]]],
    added: Sequence[Added],
    look_up: Callable[[Sequence[str]], Mapping[str, Row]],
    page: int = PAGE,
) -> Iterator[Row]:
    """Yield each row of the source, in the source's order, with what became of it behind it.

    ``rows`` are ids and values; ``look_up`` returns the outcomes of some ids, as rows of the
    outcomes' table. A row without an outcome has nulls. At most ``page`` rows are held.
    """
    source = iter(rows)
    while some := list(islice(source, page)):
        found = look_up([doc_id for doc_id, _ in some])
        for doc_id, values in some:
            outcome = found.get(doc_id)
            yield [*values, *(None if outcome is None else outcome[one.at] for one in added)]
