"""Outcomes as tables: which columns there are, what is in them, and that other tools read the files
as they were meant."""

from __future__ import annotations

import csv
import io
import json
import math
import struct
import tracemalloc
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from penstock_ledger.model import DeadLetter, ItemKey, Paid, Result
from penstock_ledger.vectors import Vectors, pack
from penstock_producer.errors import SinkError
from penstock_producer.job.sinks import TableFormat, form_named
from penstock_producer.prices import usd_of_outcome
from penstock_producer.reporting.money import money_of
from penstock_producer.storage import open_sink
from penstock_producer.tables import arrow
from penstock_producer.tables.columns import Column, Table
from penstock_producer.tables.with_source import write_rows

CHAT = "/v1/chat/completions"
EMBED = "/v1/embeddings"
SCHEMA = {
    "type": "object",
    "properties": {
        "label": {"$ref": "#/$defs/Label"},
        "score": {"type": "number"},
        "count": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "spam": {"type": ["boolean", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "ID": {"type": "string"},
    },
    "$defs": {"Label": {"enum": ["a", "b"], "type": "string"}},
}


def result(doc: str = "d", text: str | None = "hi", body: bytes | None = None) -> Result:
    answer = {"choices": [{"message": {"role": "assistant", "content": text}}]}
    made = json.dumps(answer).encode() if body is None else body
    return Result(ItemKey("job", 1, doc), 200, made, "req", "m", "stop", 7, 9, 1_500_000, 80, 2, 2)


def letter(doc: str = "dead") -> DeadLetter:
    return DeadLetter(
        ItemKey("job", 2, doc), "context_overflow", 4, 4, "too long, by far", 400, b"{}", None
    )


def as_dict(table: Table, outcome: Result | DeadLetter) -> dict[str, Any]:
    return dict(zip([column.name for column in table.columns], table.row(outcome), strict=True))


def written(folder: Path, form: TableFormat, rows: Any, table: Table, **options: bool) -> Path:
    writer = open_sink(folder).create(f"output.{form}")
    write_rows(writer, rows, table.columns, form, **options)
    writer.finish()
    return Path(writer.publish())


def rows_of(table: Table, *outcomes: Result | DeadLetter) -> list[Any]:
    return [table.row(outcome) for outcome in outcomes]


def vector(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def test_every_outcome_has_a_row_with_its_figures() -> None:
    """Results and dead letters have the same columns: who, what came of it, what it cost, and what
    went wrong."""
    table = Table({"endpoint": CHAT})
    assert as_dict(table, result()) == {
        "id": "d",
        "status": "succeeded",
        "finish_reason": "stop",
        "text": "hi",
        "model": "m",
        "prompt_tokens": 7,
        "completion_tokens": 9,
        "cost_usd": 1.5,
        "latency_ms": 80,
        "attempts": 2,
        "generation": 1,
        "error_code": None,
        "error_message": None,
    }
    dead = as_dict(table, letter())
    assert (dead["status"], dead["text"], dead["generation"]) == ("failed", None, 2)
    assert (dead["error_code"], dead["error_message"]) == ("context_overflow", "too long, by far")


def test_fields_of_a_schema_are_columns_of_their_types() -> None:
    """Simple fields have their type, references and alternatives with null included; others are
    JSON, and a field that is called like a column that every job has gets another name, whatever
    its case is."""
    table = Table({"endpoint": CHAT, "response_schema": SCHEMA})
    assert table.columns[4:10] == (
        Column("label", "text"),
        Column("score", "number"),
        Column("count", "integer"),
        Column("spam", "boolean"),
        Column("tags", "text"),
        Column("answer_ID", "text"),
    )
    answer = {"label": "a", "score": 1, "count": 3.0, "spam": False, "tags": ["x", "y"], "ID": "z"}
    row = as_dict(table, result(text=json.dumps(answer)))
    assert [row[name] for name in ("label", "score", "count", "spam", "tags", "answer_ID")] == [
        "a",
        1.0,
        3,
        False,
        '["x","y"]',
        "z",
    ]


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"allOf": [{"$ref": "#/$defs/N"}], "default": 1}, "integer"),
        ({"oneOf": [{"type": "number"}, {"type": "null"}]}, "number"),
        ({"const": "a"}, "text"),
        ({"const": True}, "boolean"),
        ({"enum": [1, 2, None]}, "integer"),
        ({"enum": [1, "a"]}, "text"),
        ({"anyOf": [{"enum": ["a"]}, {"const": None}]}, "text"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "text"),
        ({"type": "object", "properties": {"x": {"type": "integer"}}}, "text"),
        ({}, "text"),
        (True, "text"),
        ({"anyOf": []}, "text"),
    ],
)
def test_every_way_to_say_a_type_makes_a_column_of_it(part: Any, kind: str) -> None:
    """As Pydantic and people write it; what is no single simple type is JSON in a text."""
    schema = {"properties": {"x": part}, "$defs": {"N": {"type": "integer"}}}
    assert Table({"endpoint": CHAT, "response_schema": schema}).columns[4] == Column("x", kind)  # type: ignore[arg-type]  # a parameter


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "no JSON",
        "[1]",
        '{"count": 1e400, "score": NaN}',
        '{"count": 9223372036854775808, "score": "7"}',
    ],
)
def test_what_a_column_cannot_hold_is_null(text: str | None) -> None:
    """An answer that is not what the schema says still has its row, with its text and nulls."""
    row = as_dict(Table({"endpoint": CHAT, "response_schema": SCHEMA}), result(text=text))
    assert (row["text"], row["count"], row["score"], row["label"]) == (text, None, None, None)


@pytest.mark.parametrize(
    ("endpoint", "body", "text"),
    [
        ("/v1/completions", b'{"choices": [{"text": "t"}]}', "t"),
        (
            "/v1/responses",
            b'{"output": [{"type": "reasoning"}, {"content": [{"text": "a"}, {"text": "b"}]}]}',
            "ab",
        ),
        ("/v1/rerank", b'{"results": [1]}', '{"results": [1]}'),
        (CHAT, b'{"choices": []}', None),
        (CHAT, b'{"choices": [{"message": {"content": [1]}}]}', None),
        (CHAT, b"not JSON", None),
        (
            CHAT,
            b'{"choices": [{"message": {"content": "half \\ud800 and \\u0000"}}]}',
            "half \ufffd and \ufffd",
        ),
    ],
)
def test_the_text_of_an_answer(endpoint: str, body: bytes, text: str | None) -> None:
    """The text stands where the endpoint puts it; what no file or database takes is replaced."""
    assert as_dict(Table({"endpoint": endpoint}), result(body=body))["text"] == text


@pytest.mark.parametrize(
    "body",
    [
        pack(Vectors(vector(0.5, -1), "float32", 2, "float", "m", 1)),
        pack(Vectors(struct.pack("<2e", 0.5, -1), "float16", 2, "float", "m", 1)),
        b'{"data": [{"index": 0, "embedding": [0.5, -1]}]}',
        json.dumps(
            {"data": [{"index": 0, "embedding": b64encode(vector(0.5, -1)).decode()}]}
        ).encode(),
    ],
)
def test_an_embedding_is_float32_whoever_made_it(body: bytes) -> None:
    """Stored vectors of both float types, and a provider's list or base64, come to the same
    numbers."""
    row = as_dict(Table({"endpoint": EMBED}), result(body=body))
    assert (row["embedding"], row["more_embeddings"], row["text"]) == (vector(0.5, -1), None, None)


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b'{"data": [{"index": 0, "embedding": ["x"]}]}',
        b'{"data": [{"index": 0, "embedding": [1e300]}]}',
        b"\0penstock vectors 1\n",
    ],
)
def test_a_damaged_embedding_is_null(body: bytes) -> None:
    """An answer without usable vectors keeps its row."""
    assert as_dict(Table({"endpoint": EMBED}), result(body=body))["embedding"] is None


def test_parquet_is_read_as_it_was_meant(tmp_path: Path) -> None:
    """pyarrow, DuckDB and polars agree on types and values, nulls and empty texts apart."""
    parquet = pytest.importorskip("pyarrow.parquet")
    table = Table({"endpoint": CHAT, "response_schema": SCHEMA})
    answer = '{"label": "b", "score": 0.25, "count": 2, "spam": true, "tags": [], "ID": "ü"}'
    place = written(
        tmp_path,
        "parquet",
        rows_of(table, result("1", answer), result("2", ""), letter("3")),
        table,
    )
    read = parquet.read_table(place)
    assert [
        str(read.schema.field(name).type) for name in ("id", "score", "count", "spam", "cost_usd")
    ] == [
        "string",
        "double",
        "int64",
        "bool",
        "double",
    ]
    assert read.to_pylist() == [
        as_dict(table, one) for one in (result("1", answer), result("2", ""), letter("3"))
    ]
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    query = f"SELECT id, text, spam, error_code FROM '{place}' ORDER BY id"
    assert duckdb.sql(query).fetchall() == [
        ("1", answer, True, None),
        ("2", "", None, None),
        ("3", None, None, "context_overflow"),
    ]
    assert polars.read_parquet(place)["answer_ID"].to_list() == ["ü", None, None]
    assert [path.name for path in tmp_path.iterdir()] == ["output.parquet"]


def test_embeddings_are_lists_of_float32(tmp_path: Path) -> None:
    """One vector is a list, further ones are lists in a second column, and what has none is
    null."""
    parquet = pytest.importorskip("pyarrow.parquet")
    table = Table({"endpoint": EMBED})
    three = pack(Vectors(vector(1, 2, 3, 4, 5, 6), "float32", 2, "float", "m", 1))
    one = pack(Vectors(vector(7, 8), "float32", 2, "float", "m", 1))
    place = written(
        tmp_path,
        "parquet",
        rows_of(table, result("a", body=three), letter(), result("b", body=one)),
        table,
    )
    read = parquet.read_table(place)
    assert str(read.schema.field("embedding").type) == "list<element: float>"
    assert read["embedding"].to_pylist() == [[1, 2], None, [7, 8]]
    assert read["more_embeddings"].to_pylist() == [[[3, 4], [5, 6]], None, None]


def test_an_empty_job_is_a_table_without_rows(tmp_path: Path) -> None:
    """Readers find the columns also where nothing has ended yet."""
    parquet = pytest.importorskip("pyarrow.parquet")
    table = Table({"endpoint": EMBED})
    read = parquet.read_table(written(tmp_path, "parquet", iter([]), table))
    assert (read.num_rows, read.column_names) == (0, [column.name for column in table.columns])
    assert (
        written(tmp_path, "csv", iter([]), table)
        .read_text()
        .startswith("id,status,finish_reason,text,embedding,")
    )


def test_parquet_holds_one_batch_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group ends with a number of rows or of bytes, and memory stays flat however many
    follow."""
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(arrow, "BATCH_ROWS", 1_000)
    monkeypatch.setattr(arrow, "BATCH_BYTES", 1_000_000)
    table = Table({"endpoint": CHAT})

    def rows(number: int) -> Iterator[Any]:
        return (table.row(result(f"{n}", "x" * (10_000 if n < 300 else 10))) for n in range(number))

    def peak(number: int) -> int:
        tracemalloc.start()
        written(tmp_path, "parquet", rows(number), table)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(10)  # imports
    few = peak(2_000)
    assert peak(6_000) < few + 500_000
    groups = parquet.ParquetFile(tmp_path / "output.parquet").metadata
    sizes = [groups.row_group(n).num_rows for n in range(groups.num_row_groups)]
    assert (sum(sizes), max(sizes)) == (6_000, 1_000)
    assert sizes[0] < 100, "large rows end a group by their bytes"


def test_csv_is_quoted_as_rfc_4180_says(tmp_path: Path) -> None:
    """Whatever is in a text comes back from Python's reader and DuckDB's, and null is not an empty
    text."""
    table = Table({"endpoint": CHAT, "response_schema": SCHEMA})
    texts = ['a "b", c', "two\nlines\r\nand a \t", "", "=1+1", " é🜁 ", None]
    place = written(
        tmp_path, "csv", (table.row(result(f"{n}", text)) for n, text in enumerate(texts)), table
    )
    raw = place.read_bytes().decode()
    assert raw.startswith("id,status,")
    rows = list(csv.DictReader(io.StringIO(raw, newline="")))
    assert [row["text"] for row in rows] == [text or "" for text in texts]
    assert raw.endswith("5,succeeded,stop,,,,,,,,m,7,9,1.5,80,2,1,,\r\n")
    duckdb = pytest.importorskip("duckdb")
    read = f"SELECT text FROM read_csv('{place}', all_varchar=true, force_not_null=[]) ORDER BY id"
    assert [row[0] or "" for row in duckdb.sql(read).fetchall()] == [text or "" for text in texts]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_formulas_can_be_made_harmless(tmp_path: Path, start: str) -> None:
    """With the option a text that a spreadsheet would run begins with an apostrophe; numbers stay
    numbers."""
    table = Table({"endpoint": CHAT, "response_schema": {"properties": {"n": {"type": "number"}}}})
    rows = [
        table.row(result(text=start + "cmd|' /C calc'!A0")),
        table.row(result(text='{"n": -1.5}')),
    ]
    place = written(tmp_path, "csv", iter(rows), table, escape_formulas=True)
    first, second = csv.DictReader(io.StringIO(place.read_bytes().decode(), newline=""))
    assert first["text"] == f"'{start}cmd|' /C calc'!A0"
    assert second["n"] == "-1.5"


def test_vectors_in_csv_give_back_the_same_numbers(tmp_path: Path) -> None:
    """A list in JSON with the nine digits that float32 has at most."""
    table = Table({"endpoint": EMBED})
    numbers = vector(0.1, 1 / 3, math.pi * 1e-20)
    body = pack(Vectors(numbers, "float32", 3, "float", "m", 1))
    place = written(tmp_path, "csv", iter([table.row(result(body=body))]), table)
    (row,) = csv.DictReader(io.StringIO(place.read_bytes().decode(), newline=""))
    assert vector(*json.loads(row["embedding"])) == numbers
    assert len(row["embedding"]) < 45


def test_without_pyarrow_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parquet and Arrow name the extra before anything is written; CSV needs nothing."""
    monkeypatch.setattr("penstock_producer.tables.arrow.util.find_spec", lambda name: None)
    table = Table({"endpoint": CHAT})
    for ask in (
        lambda: form_named("parquet"),
        lambda: written(tmp_path, "parquet", iter([]), table),
        lambda: arrow.reader_of([], table.columns),
    ):
        with pytest.raises(SinkError, match=r"pip install 'penstock\[parquet\]'"):
            ask()
    assert form_named("csv").name == "csv"


def test_what_no_price_is_known_of_has_no_cost() -> None:
    """An unknown price is null and never 0; an answer that was reused cost nothing, and older rows
    say it by their figures."""
    made = Result(ItemKey("j", 1, "d"), 200, b"{}", None, "m", "stop", 3, 4, 5, 6, 1, 1)
    free, unpriced = structs.replace(made, cost_microusd=0), structs.replace(made, unpriced=1)
    assert usd_of_outcome(made) == 5 / 1_000_000
    assert usd_of_outcome(free) == 0.0
    assert usd_of_outcome(unpriced) is None
    assert usd_of_outcome(structs.replace(free, unpriced=None)) is None
    assert usd_of_outcome(structs.replace(free, unpriced=None, calls=0, reason="dedup")) == 0.0
    assert money_of(Paid(1, 3, 4, 5, 0)).words == "<$0.0001"
    assert money_of(Paid(2, 3, 4, 5_000_000, 1)).words == "at least $5.00 (some prices unknown)"
    assert money_of(Paid(2, 3, 4, 0, 1)).words == "unknown"
