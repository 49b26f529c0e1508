"""Rows of a call: what the engine gets of them, and what they are given back as."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as some

from penstock.errors import BadCall
from penstock.rows import (
    ID,
    DatasetRows,
    Once,
    SpooledRows,
    rows_of,
    rows_of_file,
    spool,
)


def written(source: Any, folder: Path, **more: Any) -> list[dict[str, Any]]:
    """Return the lines that the engine reads."""
    rows = rows_of(source)
    assert rows is not None
    asked: dict[str, Any] = {"columns": None, "id_field": None, **more}
    path = spool(rows, folder, say=lambda _: None, **asked).moved(folder)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_values_of_all_libraries_are_written_as_json_has_them(tmp_path: Path) -> None:
    """Times are ISO 8601, numbers numbers, arrays lists, what is missing null; ids are text."""
    when = dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC)
    frame = pd.DataFrame(
        {
            "n": pd.array([1, None], dtype="Int64"),
            "f": [1.5, float("nan")],
            "t": pd.Series([pd.Timestamp(when), pd.NaT]),
            "c": pd.Categorical(["a", None]),
            "v": [np.array([1.0, 2.0]), None],
            "d": [decimal.Decimal("1.10"), None],
            "u": [uuid.UUID(int=7), dt.date(2026, 1, 1)],
            "s": [{"b"}, (1, 2)],
            "b": [np.bool_(True), np.int64(3)],
        }
    )
    first, second = written(frame, tmp_path)
    assert first == {
        ID: "1",
        "n": 1,
        "f": 1.5,
        "t": "2026-01-02T03:04:00+00:00",
        "c": "a",
        "v": [1.0, 2.0],
        "d": "1.10",
        "u": "00000000-0000-0000-0000-000000000007",
        "s": ["b"],
        "b": True,
    }
    assert second == {ID: "2", **dict.fromkeys("nftcvd"), "u": "2026-01-01", "s": [1, 2], "b": 3}


def test_frames_of_polars_and_tables_of_arrow_are_read_alike(tmp_path: Path) -> None:
    """Lazy frames, nested columns and readers of batches are rows like others."""
    columns = {"text": ["a", None], "tags": [["x"], []], "at": [dt.date(2026, 1, 1), None]}
    wanted = [
        {ID: "1", "text": "a", "tags": ["x"], "at": "2026-01-01"},
        {ID: "2", "text": None, "tags": [], "at": None},
    ]
    assert written(pl.DataFrame(columns), tmp_path) == wanted
    assert written(pl.LazyFrame(columns), tmp_path) == wanted
    table = pa.table(columns)
    assert written(table, tmp_path) == wanted
    assert (
        written(pa.RecordBatchReader.from_batches(table.schema, table.to_batches()), tmp_path)
        == wanted
    )
    with pytest.raises(BadCall, match="to_frame"):
        rows_of(pl.Series(["a"]))


def test_the_same_rows_are_the_same_file_and_only_what_is_needed_counts(tmp_path: Path) -> None:
    """The name follows from the content of the columns that requests are made of."""
    for rows in ([{"text": "a", "x": 1}], [{"text": "a", "x": 2}], pd.DataFrame({"text": ["a"]})):
        assert written(rows, tmp_path, columns=["text"]) == [{"text": "a", ID: "1"}]
    assert len(list(tmp_path.glob("rows-*.jsonl"))) == 1
    written([{"text": "b"}], tmp_path)
    assert len(list(tmp_path.glob("rows-*"))) == 2


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"k": 1}, {"k": 1}], "'1' is in the column 'k' twice, the second time in row 2"),
        ([{"k": None}], "row 1 has nothing in the id column 'k'"),
        ([{"k": float("nan")}], "row 1 has nothing in the id column 'k'"),
        ([{"x": 1}], "row 1 has nothing in the id column 'k'"),
        ([{"k": "a"}, {"k": "b", "x": b"raw"}], "the column 'x' has bytes in row 2"),
        ([{"k": "a", "x": object()}], "the column 'x' has object in row 1"),
        ([], "no rows"),
        ([["a"]], "a row is list"),
    ],
)
def test_rows_that_cannot_be_written_are_named(rows: Any, says: str, tmp_path: Path) -> None:
    """The message has row and column, and nothing half written is left."""
    with pytest.raises(BadCall) as refused:
        written(rows, tmp_path, id_field="k")
    assert says in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_an_iterator_that_breaks_leaves_nothing(tmp_path: Path) -> None:
    """Its own exception comes through."""

    def rows() -> Iterator[dict[str, str]]:
        yield {"text": "a"}
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        written(rows(), tmp_path)
    assert list(tmp_path.iterdir()) == []


texts = some.text(alphabet=some.characters(exclude_categories=["Cs"]))


@given(
    some.lists(
        some.fixed_dictionaries({"text": texts, "n": some.none() | some.integers(-(2**53), 2**53)}),
        min_size=1,
    )
)
def test_rows_on_disk_are_found_by_their_number(rows: list[dict[str, Any]]) -> None:
    """What an iterator gave is read back whole and one by one, whatever is in its texts."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = spool(
            Once(iter(rows)), folder, columns=None, id_field=None, say=lambda _: None
        ).moved(folder)
        kept = SpooledRows(path)
        assert list(kept.records()) == rows
        assert [kept.record(number) for number in range(len(rows))] == rows


def test_a_dataset_is_read_row_by_row(tmp_path: Path) -> None:
    """Whatever its format is, with the rows that are chosen of it; a stream of one is read once,
    and of several a person has to choose."""
    rows = {"text": ["a", "b", None], "label": [0, 1, 2], "tags": [["x"], [], ["y", "z"]]}
    whole = datasets.Dataset.from_dict(rows)
    chosen = whole.select([2, 0]).with_format("numpy")
    assert [one["label"] for one in written(whole, tmp_path)] == [0, 1, 2]
    found = rows_of(chosen)
    assert isinstance(found, DatasetRows)
    assert found.record(0) == {"text": None, "label": 2, "tags": ["y", "z"]}
    assert [one["text"] for one in written(chosen, tmp_path)] == [None, "a"]
    assert found.to_arrow().column_names == ["text", "label", "tags"]
    assert list(found.to_pandas()["label"]) == list(found.to_polars()["label"]) == [2, 0]
    stream = datasets.IterableDataset.from_generator(lambda: iter([{"text": "late"}]))
    assert [one["text"] for one in written(stream, tmp_path)] == ["late"]
    with pytest.raises(BadCall, match="2 datasets: give one of train, test"):
        rows_of(datasets.DatasetDict({"train": whole, "test": whole}))


def test_files_of_rows_have_types_and_others_are_left_to_the_engine(tmp_path: Path) -> None:
    """CSV, TSV, Parquet and JSON Lines are read here; a file that is none of them is said to be."""
    (tmp_path / "a.csv").write_text('n,text\n1,"two\nlines"\n2,\n')
    (tmp_path / "a.tsv").write_text("n\ttext\n3\tx\n")
    (tmp_path / "a.jsonl").write_text('{"n": 4}\n\n{"n": 5, "text": "y"}\n')
    (tmp_path / "bad.jsonl").write_text("{\n")
    (tmp_path / "a.txt").write_text("text")
    read = {}
    for name in ("a.csv", "a.tsv", "a.jsonl"):
        rows = rows_of_file(tmp_path / name)
        assert rows is not None
        read[name] = list(rows.records())
    assert read["a.csv"] == [{"n": 1, "text": "two\nlines"}, {"n": 2, "text": ""}]
    assert read["a.tsv"] == [{"n": 3, "text": "x"}]
    assert read["a.jsonl"] == [{"n": 4}, {"n": 5, "text": "y"}]
    assert rows_of_file(tmp_path / "a.txt") is None
    assert rows_of_file(tmp_path / "absent.csv") is None
    with pytest.raises(BadCall, match="cannot be read"):
        rows_of_file(tmp_path / "bad.jsonl")


def test_what_has_no_rows_is_refused() -> None:
    """The message says what may be given."""
    for source in (7, {"text": "a"}, b"raw", None):
        with pytest.raises(BadCall, match="give a data frame"):
            rows_of(source)
