"""Parquet and Arrow files written by pyarrow: rows by group, values, memory, and files that are
none."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

from penstock_producer.accepting.survey import survey
from penstock_producer.errors import BadReference, SourceChanged, SourceError, SourceUnavailable
from penstock_producer.job.spec import JobSpec
from penstock_producer.sources import BadRow, Document, open_source
from penstock_producer.sources.readers import columnar, groups

SPEC = JobSpec(prompt="{text}", model="m", max_bad_rows=10)


def write(path: Path, table: Any, group: int = 100) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=group)
    else:
        new = ipc.new_stream if path.suffix == ".arrows" else ipc.new_file
        with new(str(path), table.schema) as file:
            file.write_table(table, max_chunksize=group)
    return path


def asked(row: Document | BadRow) -> str:
    assert isinstance(row, Document), str(row)
    return str(json.loads(row.body)["messages"][0]["content"])


def numbered(count: int) -> Any:
    return pa.table(
        {
            "id": list(range(count)),
            "other": ["x" * 50] * count,
            "text": [f"t{number}" for number in range(count)],
        }
    )


def by_duckdb(path: Path) -> None:
    rows = "SELECT i AS id, 't' || i AS text, [i] AS listed FROM range(64) r(i)"
    duckdb.execute(
        f"COPY ({rows}) TO '{path}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 2048)"
    )


def by_polars(path: Path) -> None:
    table = pl.DataFrame({"id": range(64), "text": [f"t{number}" for number in range(64)]})
    table.with_columns(pl.col("id").cast(pl.UInt16), listed=pl.concat_list("id")).write_parquet(
        path, row_group_size=20
    )


@pytest.mark.parametrize("writer", [by_duckdb, by_polars])
def test_files_of_other_writers_are_read(tmp_path: Path, writer: Callable[[Path], None]) -> None:
    """DuckDB and polars write other encodings, compressions and types than pyarrow does; rows are
    the same."""
    writer(tmp_path / "in.parquet")
    rows = list(open_source(tmp_path / "in.parquet", SPEC).documents({}))
    assert [asked(row) for row in rows] == [f"t{number}" for number in range(64)]
    assert [row.doc_id for row in rows] == [str(number) for number in range(64)]


@pytest.mark.parametrize("name", ["in.parquet", "in.arrow", "in.arrows"])
def test_rows_are_found_by_cursor_and_position(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row comes once, in order, from the pin, after any cursor, and by its position in any
    order."""
    monkeypatch.setattr(groups, "ROWS_PER_BATCH", 7)
    monkeypatch.setattr(groups, "ROWS_PER_BATCH", 7)
    monkeypatch.setattr(columnar, "KEPT_BYTES", 100)
    path = write(tmp_path / name, numbered(64), group=20)
    found = survey(open_source(path, SPEC), SPEC)
    assert (found.total, found.pin["format"]) == (
        64,
        "parquet" if name.endswith("parquet") else "arrow",
    )
    source = open_source(json.loads(json.dumps(found.pin)), SPEC)
    rows = list(source.documents({}))
    assert [(row.doc_id, row.line, asked(row)) for row in rows] == [
        (f"{n}", n + 1, f"t{n}") for n in range(64)
    ]
    for index, row in enumerate(rows):
        assert list(source.documents(row.cursor)) == rows[index + 1 :]
    random.Random(1).shuffle(rows)
    for row in rows:
        assert isinstance(row, Document)
        assert source.fetch(row.position).body == row.body
    for position in ("0:20", "4:0", "0", "999999999:1"):
        with pytest.raises(BadReference):
            source.fetch(position)


def test_only_the_columns_that_are_used_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other columns are not even decoded."""
    asked_for: list[list[str]] = []
    original = pq.ParquetFile.iter_batches

    def watched(self: Any, *given: Any, **options: Any) -> Any:
        asked_for.append(options["columns"])
        return original(self, *given, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
    survey(open_source(write(tmp_path / "in.parquet", numbered(5)), SPEC), SPEC)
    assert asked_for == [["id", "text"]]


def test_a_large_file_is_never_loaded_whole(tmp_path: Path) -> None:
    """What pyarrow holds is a part of one row group, not the file."""
    noise = random.Random(2)
    count = 20_000
    texts = pa.array([noise.randbytes(500).hex() for _ in range(count)])
    path = write(
        tmp_path / "in.parquet",
        pa.table({"id": list(range(count)), "text": texts}),
        group=count // 10,
    )
    del texts
    before = pa.total_allocated_bytes()
    most = 0
    for index, _ in enumerate(open_source(path, SPEC).documents({})):
        if index % 500 == 0:
            most = max(most, pa.total_allocated_bytes() - before)
    assert most < path.stat().st_size / 3


def test_values_become_what_json_has(tmp_path: Path) -> None:
    """Dates, decimals, lists, structs and nulls have a text; what has none is a bad row with its
    column."""
    spec = JobSpec(
        prompt='{user.name} {day} {at} {price} {tags} {score|default:"none"} {raw|default:""}',
        model="m",
    )
    table = pa.table(
        {
            "id": ["a", "b", "c", "d", None],
            "user": [{"name": "Eva"}] * 5,
            "day": [datetime.date(2026, 1, 2)] * 5,
            "at": [datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC)] * 5,
            "price": [decimal.Decimal("1.50")] * 5,
            "tags": [["x", "y"]] * 5,
            "score": [None, float("nan"), 1.5, 1.5, 1.5],
            "raw": [None, None, b"\0", None, None],
        }
    )
    rows = list(open_source(write(tmp_path / "in.parquet", table), spec).documents({}))
    assert asked(rows[0]) == 'Eva 2026-01-02 2026-01-02T03:04:00+00:00 1.50 ["x","y"] none '
    assert [(row.code, row.field, row.line) for row in rows if isinstance(row, BadRow)] == [
        ("invalid_number", "score", 2),
        ("invalid_type", "raw", 3),
        ("invalid_id", "id", 5),
    ]


def test_text_that_is_not_utf8_is_one_bad_row(tmp_path: Path) -> None:
    """Bytes that a writer called text cost their row, not the batch."""
    texts = pa.array([b"fine", b"caf\xe9", b"nul\0"]).view(pa.string())
    path = write(tmp_path / "in.parquet", pa.table({"id": ["a", "b", "c"], "text": texts}))
    good, bad, nul = open_source(path, SPEC).documents({})
    assert asked(good) == "fine"
    assert isinstance(bad, BadRow)
    assert isinstance(nul, BadRow)
    assert (bad.code, bad.line, nul.code, nul.field) == (
        "invalid_encoding",
        2,
        "nul_character",
        "text",
    )


@pytest.mark.parametrize("form", ["file", "stream"])
@pytest.mark.parametrize("codec", [None, "zstd"])
def test_a_record_batch_is_bounded_before_it_is_read(
    tmp_path: Path, form: str, codec: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch larger than memory allows is named with the writer's option, packed or not; smaller
    ones are read."""
    path, table = tmp_path / "in.arrow", numbered(5000)
    with (ipc.new_stream if form == "stream" else ipc.new_file)(
        str(path), table.schema, options=ipc.IpcWriteOptions(compression=codec)
    ) as file:
        file.write_table(table, max_chunksize=5000)
    assert survey(open_source(path, SPEC), SPEC).total == 5000
    monkeypatch.setattr(groups, "MAX_BATCH_BYTES", 20_000)
    with pytest.raises(SourceError, match=r"record_batch_too_large.*max_chunksize"):
        survey(open_source(path, SPEC), SPEC)
    write(path, numbered(500), group=100)
    assert survey(open_source(path, SPEC), SPEC).total == 500


def test_dictionaries_of_a_stream_are_kept(tmp_path: Path) -> None:
    """Values that are numbers of a dictionary are read by cursor and position as others are."""
    table = pa.table(
        {"id": list(range(30)), "text": pa.array(["x", "y", "z"] * 10).dictionary_encode()}
    )
    path = write(tmp_path / "in.arrows", table, group=7)
    source = open_source(survey(open_source(path, SPEC), SPEC).pin, SPEC)
    rows = list(source.documents({}))
    assert [asked(row) for row in rows] == ["x", "y", "z"] * 10
    assert list(source.documents(rows[16].cursor)) == rows[17:]
    assert isinstance(rows[29], Document)
    assert source.fetch(rows[29].position).body == rows[29].body


def test_any_byte_of_a_stream_may_be_another(tmp_path: Path) -> None:
    """Whatever a stream's headers say, reading ends with rows or a SourceError; the process goes
    on."""
    whole = write(tmp_path / "whole.arrows", numbered(40), group=10).read_bytes()
    noise = random.Random(3)
    path = tmp_path / "in.arrows"
    for _ in range(150):
        content = bytearray(whole)
        content[noise.randrange(len(content))] = noise.randrange(256)
        path.write_bytes(bytes(content))
        with contextlib.suppress(SourceError):
            list(open_source(path, SPEC).documents({}))


def test_hashing_a_file_is_timed(tmp_path: Path) -> None:
    """A door's time limit holds for the pass that pins a Parquet file, too, which comes before any
    row."""
    path = write(tmp_path / "in.parquet", numbered(50))
    with pytest.raises(SourceError, match="source_too_slow"):
        open_source(path, SPEC, timeout_s=-1).pin()


def test_rows_of_tables_are_called_rows(tmp_path: Path) -> None:
    """Messages, lists of alike faults, and ids of refused rows speak of rows: such a file has no
    lines."""
    table = pa.table({"id": ["a", None, "a", None], "text": ["x"] * 4})
    path = write(tmp_path / "in.parquet", table)
    found = survey(open_source(path, SPEC), SPEC)
    texts = [str(refusal.row) for refusal in found.refused]
    assert f"{path} row 2: invalid_id" in texts[0]
    assert "The id of row 3 was already used in row 1;" in texts[1]
    assert [refusal.doc_id for refusal in found.refused] == ["row-2", "row-3", "row-4"]
    with pytest.raises(SourceError, match=r"1 more like it, in row 4") as caught:
        survey(open_source(path, SPEC), SPEC.model_copy(update={"max_bad_rows": 2}))
    assert "invalid_id (id) in row 2" in caught.value.public_message


@pytest.mark.parametrize("rows", ["parquet", "arrow", "arrows"])
def test_files_that_are_damaged_or_something_else_are_one_error(tmp_path: Path, rows: str) -> None:
    """A truncated file, another file by that name, and an empty one are refused with the name."""
    whole = write(tmp_path / f"in.{rows}", numbered(500)).read_bytes()
    for content in (whole[:-20], whole[: len(whole) // 2], b'{"id": "a"}\n' * 9, b"PAR1", b""):
        path = tmp_path / f"bad.{rows}"
        path.write_bytes(content)
        with pytest.raises(
            SourceError, match=rf"invalid_{rows.removesuffix('s')}: .*bad\.{rows} cannot be read"
        ):
            survey(open_source(path, SPEC), SPEC)


def test_columns_are_checked_before_any_row(tmp_path: Path) -> None:
    """A column that id or prompt need and the file lacks is one error, as are rows without a
    prompt."""
    path = write(tmp_path / "in.parquet", numbered(5))
    for spec, words in (
        (JobSpec(prompt="{txet}", model="m"), "no column 'txet'.*'id', 'other', 'text'"),
        (JobSpec(prompt="{text}", model="m", id_field="key"), "no column 'key'"),
        (JobSpec(model="m"), "wrong_form"),
    ):
        with pytest.raises(SourceError, match=words):
            survey(open_source(path, spec), spec)


def test_a_row_group_too_large_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that could not be read in bounded memory is refused with the writer's option."""
    monkeypatch.setattr(groups, "MAX_GROUP_BYTES", 1000)
    with pytest.raises(SourceError, match=r"row_group_too_large.*row_group_size"):
        survey(open_source(write(tmp_path / "in.parquet", numbered(1000), group=1000), SPEC), SPEC)


def test_changed_content_is_never_read(tmp_path: Path) -> None:
    """The pin holds for a Parquet file as for any other."""
    path = write(tmp_path / "in.parquet", numbered(50))
    pin = survey(open_source(path, SPEC), SPEC).pin
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(bytes(content))
    os.utime(path, (1, 1))
    with pytest.raises(SourceChanged):
        list(open_source(pin, SPEC).documents({}))
    with pytest.raises(SourceChanged):
        open_source(pin, SPEC).fetch("0:1")


def test_a_name_without_an_ending_is_looked_into(tmp_path: Path) -> None:
    """Where the name says nothing, the first bytes do."""
    path = write(tmp_path / "in.parquet", numbered(5)).rename(tmp_path / "part-0")
    assert survey(open_source(path, SPEC), SPEC).total == 5


def test_a_machine_without_pyarrow_pauses_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library that is missing is named, as what can be put right: a control loop pauses such a
    job and does not fail it."""
    path = write(tmp_path / "in.parquet", numbered(5))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SourceUnavailable, match=r"pip install penstock\[parquet\]"):
        list(open_source(path, SPEC).documents({}))
