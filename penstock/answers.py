"""A job's answers stand beside the rows that went in."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple, overload

from penstock.rows import Record, Rows
from penstock_producer.tables.columns import Row, Table, as_json
from penstock_producer.tables.with_source import ANSWER, Added, added_columns

__all__ = ["Answer", "Answers"]

SHOWN: Final = 5  # answers in a repr
SHOWN_CHARS: Final = 80  # of each
STATUS: Final = "status"
SUCCEEDED: Final = "succeeded"
WAITING: Final = "waiting"
# of the columns beside an answer's own: those that one looks at first
_FIRST: Final = (STATUS, "error_code", "error_message", "cost_usd")


class Source(NamedTuple):
    """The rows of a job, as far as they are known."""

    rows: Rows | None
    ids: Sequence[str] | None  # of its rows, in their order; None: those that have an outcome


class Answer:
    """The outcome of one row."""

    __slots__ = ("_columns", "_model", "_record", "_values", "id", "number")

    def __init__(
        self,
        number: int,
        doc_id: str,
        columns: Mapping[str, int],
        values: Row | None,
        record: Callable[[], Record | None],
        model: Any,
    ) -> None:
        self.id = doc_id
        self.number = number  # of its row, from 0 on
        self._columns = columns
        self._values = values
        self._record = record
        self._model = model

    @property
    def row(self) -> Record | None:
        """Return the row that went in; None where it is not at hand."""
        return self._record()

    @property
    def status(self) -> str:
        """Say `succeeded`, `failed`, or `waiting` while it has no outcome."""
        return WAITING if self._values is None else str(self[STATUS])

    @property
    def ok(self) -> bool:
        return self.status == SUCCEEDED

    @property
    def text(self) -> str | None:
        return None if self._values is None else self["text"]

    @property
    def value(self) -> Any:
        """Return what was asked for: None for a row that failed.

        It is an instance of the class that `response_format` named, a dict for a schema, a vector
        for an embedding, else the text.
        """
        if not self.ok:
            return None
        if "embedding" in self._columns:
            return self["embedding"]
        if self._model is None:
            return self.text
        return self._model(self.text or "")

    @property
    def cost_usd(self) -> float | None:
        """Return what the answer cost; None where no price is known."""
        return None if self._values is None else self["cost_usd"]

    @property
    def error(self) -> str | None:
        if self._values is None or self["error_code"] is None:
            return None
        return f"{self['error_code']}: {self['error_message']}"

    def __getitem__(self, name: str) -> Any:
        """Return a column of the outcome, such as a field of the answer. Raises KeyError."""
        at = self._columns[name]
        if self._values is None:
            return None
        return as_json(self._values[at])

    def __repr__(self) -> str:
        return f"Answer({self.id!r}, {self.status}, {_short(self.text or self.error)!r})"


class Answers(Sequence[Answer]):
    """All rows of a job in the order in which they went in, each with its outcome."""

    def __init__(
        self,
        *,
        job: str,
        place: str,
        source: Callable[[], Source],
        spec: Mapping[str, Any],
        outcomes: Callable[[], Iterator[Row]],
        report: Mapping[str, Any],
        model: Any = None,
        forget: Callable[[], None] | None = None,
    ) -> None:
        """Keep what answers are made of, which is read on first use.

        ``source`` reads the rows; ``outcomes`` yields rows of the job's table.
        """
        self.job = job
        self.place = place
        self.report = dict(report)
        self._read, self._spec, self._outcomes, self._model = source, spec, outcomes, model
        self._forget = forget
        self._table = Table(spec)
        self._at = {column.name: at for at, column in enumerate(self._table.columns)}

    @property
    def cost_usd(self) -> float | None:
        """Return what all answers cost; None where a price is not known."""
        cost: float | None = self.report.get("cost_usd")
        return cost

    @property
    def dead(self) -> list[Answer]:
        """Return those that failed for good, each with its ``error``."""
        return [one for one in self if one.status == "failed"]

    @cached_property
    def _by_id(self) -> Mapping[str, Row]:
        return {row[0]: row for row in self._outcomes()}

    @cached_property
    def _source(self) -> Source:
        return self._read()

    @property
    def _rows(self) -> Rows | None:
        return self._source.rows

    @cached_property
    def _names(self) -> Sequence[str]:
        ids = self._source.ids
        return list(self._by_id) if ids is None else ids

    def forget(self) -> None:
        """Remove all that is kept of the job: the same call begins anew, and pays again."""
        if self._forget is not None:
            self._forget()

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, at: int) -> Answer: ...
    @overload
    def __getitem__(self, at: slice) -> list[Answer]: ...
    def __getitem__(self, at: int | slice) -> Answer | list[Answer]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        number = range(len(self))[at]
        doc_id = self._names[number]
        return Answer(
            number,
            doc_id,
            self._at,
            self._by_id.get(doc_id),
            lambda: None if self._rows is None else self._rows.record(number),
            self._model,
        )

    def to_pandas(self, *, details: bool = False) -> Any:
        """Return the rows as a frame of pandas, with the answers behind them.

        A frame that went in has its columns, index and types. ``details`` adds model, tokens,
        latency, attempts and the rest of what is known of each answer.
        """
        import pandas as pd

        frame = pd.DataFrame({"id": self._names}) if self._rows is None else self._rows.to_pandas()
        added = self._added(list(map(str, frame.columns)), details)
        kinds = {"text": object, "integer": "Int64", "number": "float64", "boolean": "boolean"}
        new = {
            one.column.name: pd.Series(
                list(map(_vector, self._values(one))),
                index=frame.index,
                dtype=kinds.get(one.column.kind, object),
            )
            for one in added
        }
        return pd.concat([frame, pd.DataFrame(new, index=frame.index)], axis=1)

    def to_polars(self, *, details: bool = False) -> Any:
        """Return the rows as a frame of polars, with the answers behind them."""
        import polars as pl

        frame = pl.DataFrame({"id": self._names}) if self._rows is None else self._rows.to_polars()
        kinds: dict[str, Any] = {
            "text": pl.String,
            "integer": pl.Int64,
            "number": pl.Float64,
            "boolean": pl.Boolean,
            "vector": pl.List(pl.Float32),
            "vectors": pl.List(pl.List(pl.Float32)),
        }
        return frame.hstack(
            [
                pl.Series(
                    one.column.name,
                    [as_json(value) for value in self._values(one)],
                    dtype=kinds[one.column.kind],
                )
                for one in self._added(frame.columns, details)
            ]
        )

    def to_arrow(self, *, details: bool = False) -> Any:
        """Return the rows as an Arrow table, with the answers behind them."""
        import pyarrow as pa

        table = pa.table({"id": self._names}) if self._rows is None else self._rows.to_arrow()
        kinds: dict[str, Any] = {
            "text": pa.string(),
            "integer": pa.int64(),
            "number": pa.float64(),
            "boolean": pa.bool_(),
            "vector": pa.list_(pa.float32()),
            "vectors": pa.list_(pa.list_(pa.float32())),
        }
        for one in self._added(table.column_names, details):
            values = [as_json(value) for value in self._values(one)]
            table = table.append_column(
                one.column.name, pa.array(values, type=kinds[one.column.kind])
            )
        return table

    def to_list(self, *, details: bool = False) -> list[dict[str, Any]]:
        """Return the rows as dicts, with the answers among them."""
        if self._rows is None:
            records: Sequence[Record] = [{"id": name} for name in self._names]
        else:
            records = list(self._rows.records())
        names = dict.fromkeys(name for record in records for name in record)
        added = self._added(list(names), details)
        columns = [[as_json(value) for value in self._values(one)] for one in added]
        return [
            {
                **record,
                **{one.column.name: column[at] for one, column in zip(added, columns, strict=True)},
            }
            for at, record in enumerate(records)
        ]

    def _added(self, source: Sequence[str], details: bool) -> list[Added]:
        """Return the columns that go behind those of the source: the answer's, then the rest."""
        added = added_columns(source, self._table.columns)
        names = [self._table.columns[one.at].name for one in added]
        own = [at for at, name in enumerate(names) if name in self._table.own]
        text = [at for at, name in enumerate(names) if name == "text" and (details or not own)]
        first = [names.index(name) for name in _FIRST]
        chosen = dict.fromkeys([*own, *text, *first, *(range(len(added)) if details else ())])
        return [added[at] for at in chosen]

    def _values(self, one: Added) -> Iterator[Any]:
        for name in self._names:
            row = self._by_id.get(name)
            if row is None:
                yield WAITING if self._table.columns[one.at].name == STATUS else None
            else:
                yield row[one.at]

    @property
    def _headline(self) -> str:
        report = self.report
        cost = "unknown" if self.cost_usd is None else f"${self.cost_usd:.4f}"
        dead = report.get("dead", 0)
        waiting = len(self) - report.get("succeeded", 0) - dead
        parts = [f"{len(self):,} rows", f"{report.get('succeeded', 0):,} answered"]
        parts += [f"{dead:,} failed"] if dead else []
        parts += [f"{waiting:,} waiting"] if waiting > 0 else []
        return ", ".join([*parts, f"cost {cost}"])

    def __repr__(self) -> str:
        return f"<Answers of {self.job}: {self._headline}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(one.id)}</td><td>{html.escape(one.status)}</td>"
            f"<td>{html.escape(_short(one.text or one.error))}</td></tr>"
            for one in self[:SHOWN]
        )
        more = f"<p>and {len(self) - SHOWN:,} more</p>" if len(self) > SHOWN else ""
        return (
            f"<p><b>{html.escape(self._headline)}</b></p>"
            f"<table><tr><th>row</th><th>status</th><th>{ANSWER}</th></tr>{rows}</table>{more}"
            f"<p><small>kept in {html.escape(self.place)}; .to_pandas(), .to_polars(), "
            ".to_arrow(), .to_list(), .dead, .report, .forget()</small></p>"
        )


def _short(text: str | None) -> str:
    line = " ".join((text or "").split())
    return line if len(line) <= SHOWN_CHARS else f"{line[: SHOWN_CHARS - 1]}…"


def _vector(value: Any) -> Any:
    """Return a stored vector as an array of numpy, which pandas brings."""
    if isinstance(value, list):
        return list(map(_vector, value))
    if not isinstance(value, bytes):
        return value
    import numpy as np

    return np.frombuffer(value, dtype="<f4")
