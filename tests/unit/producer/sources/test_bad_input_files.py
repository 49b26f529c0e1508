"""The catalogue of bad input for files, row by row, for every format in which a row can occur.

Each case has the catalogue's row number. What is expected is `row CODE` for a document that becomes
a dead letter while the other is fed, `source CODE` for a source that is refused as a whole, and
`fine N` for N documents and nothing refused.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc
from pyarrow.parquet import encryption

from penstock_producer.accepting.survey import Survey, survey
from penstock_producer.errors import SourceChanged, SourceError, SourceUnavailable
from penstock_producer.job.spec import JobSpec
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources import Document, open_source

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PLAIN = JobSpec(prompt="{text}", model="m", max_bad_rows=5)
BATCH = JobSpec(model="m", max_bad_rows=5)
LIMITS = ProducerSettings(max_line_bytes=4000, max_body_bytes=6000)
GOOD = b'{"id": "good", "text": "x"}\n'
KINDS = ("parquet", "arrow", "arrows")


class Case(NamedTuple):
    row: int  # of the catalogue
    name: str  # of the file, or of the folder
    content: bytes | dict[str, bytes]
    expected: str
    spec: JobSpec = PLAIN


def lines(*rows: str | bytes) -> bytes:
    """JSON Lines with a good row in front."""
    return GOOD + b"".join(row if isinstance(row, bytes) else row.encode() + b"\n" for row in rows)


def table(kind: str, columns: dict[str, Any] | pa.Table, **how: Any) -> bytes:
    file = io.BytesIO()
    data = pa.table(columns) if isinstance(columns, dict) else columns
    if kind == "parquet":
        pq.write_table(data, file, **how)
    else:
        with (ipc.new_stream if kind == "arrows" else ipc.new_file)(file, data.schema) as writer:
            writer.write_table(data)
    return file.getvalue()


def cell(kind: str, value: Any) -> bytes:
    """A good row and one with this text."""
    return table(
        kind,
        {
            "id": ["good", "bad"],
            "text": [None, value] if not isinstance(value, str) else ["x", value],
        },
    )


def named(kind: str, doc_id: Any) -> bytes:
    """A good row and one with this id."""
    return table(kind, {"id": pa.array(["good", doc_id]), "text": ["x", "y"]})


def batch(**changes: Any) -> bytes:
    """Two batch lines, the second changed; None removes a field."""
    good = {
        "custom_id": "good",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user"}]},
    }
    bad = {
        name: value
        for name, value in (good | {"custom_id": "bad"} | changes).items()
        if value is not None
    }
    return json.dumps(good).encode() + b"\n" + json.dumps(bad).encode() + b"\n"


def latin(kind: str) -> bytes:
    """A text that a writer did not check."""
    return table(
        kind, {"id": ["good", "bad"], "text": pa.array([b"x", b"caf\xe9"]).view(pa.string())}
    )


def nested(kind: str, depth: int) -> bytes:
    value: Any = "x"
    for _ in range(depth):
        value = {"f": value}
    return table(kind, {"id": ["good"], "text": [value]})


def texts(**files: bytes) -> dict[str, bytes]:
    """A folder with a good text."""
    return {
        "a-good.txt": b"x",
        **{name.replace("_", "."): content for name, content in files.items()},
    }


def encrypted() -> bytes:
    class Keys(encryption.KmsClient):  # type: ignore[misc]  # pyarrow has no types
        def wrap_key(self, key: bytes, _name: str) -> bytes:
            return key.hex().encode()

    how = encryption.EncryptionConfiguration(
        footer_key="f", column_keys={"f": ["id", "text"]}, plaintext_footer=False
    )
    factory = encryption.CryptoFactory(lambda _config: Keys())
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), how)
    return table("parquet", {"id": ["a"], "text": ["x"]}, encryption_properties=properties)


def cases() -> Iterator[Case]:
    """TSV has every case of CSV: the same records with tabs between their values."""
    for case in cases_of_files():
        yield case
        if case.name == "in.csv" and isinstance(case.content, bytes) and b";" not in case.content:
            yield case._replace(name="in.tsv", content=case.content.replace(b",", b"\t"))


def cases_of_files() -> Iterator[Case]:
    packed: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "zst": zstd.compress}
    yield Case(1, "in.jsonl", lines("oops"), "row invalid_json_line")
    yield Case(2, "in.jsonl", lines("[1]"), "row invalid_json_line")
    yield Case(2, "in.jsonl", b"\n\n" + GOOD + b" \t\n", "fine 1")
    yield Case(2, "in.csv", b"id,text\n\n\na,x\n\n", "fine 1")
    for field in ("custom_id", "method", "url", "body"):
        yield Case(3, "in.jsonl", batch(**{field: None}), "row missing_required_parameter", BATCH)
    yield Case(3, "in.jsonl", lines('{"text": "x"}'), "row missing_required_parameter")
    yield Case(3, "in.csv", b"key,text\na,x\n", "source missing_column")
    yield Case(4, "in.jsonl", batch(url="/v1/files"), "row invalid_url", BATCH)
    yield Case(4, "in.jsonl", batch(url="/v1/embeddings"), "row invalid_request", BATCH)
    yield Case(
        4,
        "in.jsonl",
        batch(url="/v1/embeddings", body={"model": "m", "input": "x"}),
        "fine 2",
        BATCH,
    )
    yield Case(5, "in.jsonl", batch(body={"model": "m"}), "row invalid_request", BATCH)
    yield Case(
        5, "in.jsonl", batch(body={"model": "", "messages": ["x"]}), "row invalid_request", BATCH
    )
    yield Case(6, "in.jsonl", batch(body={"model": "other", "messages": ["x"]}), "fine 2", BATCH)
    yield Case(
        7,
        "in.jsonl",
        batch(body={"messages": ["x"], "stream": True}),
        "row streaming_unsupported",
        BATCH,
    )
    yield Case(8, "in.jsonl", lines('{"id": "good", "text": "y"}'), "row duplicate_custom_id")
    yield Case(8, "in.csv", b"id,text\na,x\na,y\n", "row duplicate_custom_id")
    yield Case(8, "in/", {"a/1.txt": b"x", "b/1.txt": b"y"}, "row duplicate_custom_id", by_name())
    for content in (b"", b" \n\t\n", b"\xef\xbb\xbf"):
        yield Case(9, "in.jsonl", content, "source empty_source")
        yield Case(
            9,
            "in.csv",
            content,
            "source empty_source" if content != b" \n\t\n" else "source missing_column",
        )
        yield Case(9, "in/", texts(b_txt=content), "row empty_file")
    yield Case(9, "in.csv", b"id,text\n", "source empty_source")
    yield Case(9, "in/", {}, "source no_such_file")
    yield Case(
        11, "in.jsonl", lines(b'{"id": "b", "text": "' + b"x" * 5000 + b'"}\n'), "row line_too_long"
    )
    yield Case(11, "in.jsonl", b"x" * 5000, "row line_too_long")
    yield Case(11, "in.csv", b"id,text\na,x\nb," + b"x" * 5000 + b"\n", "source line_too_long")
    yield Case(11, "in/", texts(b_txt=b"x" * 5000), "row file_too_large")
    yield Case(12, "in.jsonl", lines(b'{"id": "b", "text": "y"}'), "fine 2")
    yield Case(12, "in.jsonl", lines(b'{"id": "b", "te'), "row invalid_json_line")
    yield Case(12, "in.csv", b"id,text\na,x", "fine 1")
    yield Case(13, "in.jsonl", b"\xef\xbb\xbf" + GOOD, "fine 1")
    yield Case(13, "in.csv", b"\xef\xbb\xbfid,text\na,x\n", "fine 1")
    yield Case(13, "in/", texts(b_txt=b"\xef\xbb\xbfx"), "fine 2")
    for encoding in ("utf-16", "utf-32"):
        yield Case(13, "in.jsonl", GOOD.decode().strip().encode(encoding), "row invalid_encoding")
        yield Case(13, "in.csv", "id,text\na,x\n".encode(encoding), "source invalid_encoding")
        yield Case(13, "in/", texts(b_txt="text".encode(encoding)), "row invalid_encoding")
    yield Case(13, "in.jsonl", lines(b'{"id": "b", "text": "caf\xe9"}\n'), "row invalid_encoding")
    yield Case(13, "in.csv", b"id,text\na,x\nb,caf\xe9\n", "row invalid_encoding")
    yield Case(13, "in/", texts(b_txt=b"caf\xe9"), "row invalid_encoding")
    odd = "a\u2028b\u2029c\u0085d"
    yield Case(
        14, "in.jsonl", lines(json.dumps({"id": "b", "text": odd}, ensure_ascii=False)), "fine 2"
    )
    yield Case(14, "in.csv", f"id,text\na,{odd}\n".encode(), "fine 1")
    yield Case(14, "in/", texts(b_txt=odd.encode()), "fine 2")
    yield Case(15, "in.jsonl", lines(b'{"id": "b", "text": "\0"}\n'), "row invalid_json_line")
    yield Case(15, "in.jsonl", lines(r'{"id": "b", "text": "\u0000"}'), "row nul_character")
    yield Case(15, "in.csv", b"id,text\na,x\nb,\0\n", "row nul_character")
    yield Case(15, "in/", texts(b_txt=b"a\0b"), "row nul_character")
    yield Case(16, "in.jsonl", lines(r'{"id": "b", "text": "\ud800"}'), "row invalid_unicode")
    yield Case(16, "in.csv", b"id,text\na,x\nb,\xed\xa0\x80\n", "row invalid_encoding")
    yield Case(16, "in/", texts(b_txt=b"\xed\xa0\x80"), "row invalid_encoding")
    for number in ("NaN", "-Infinity", "1e999", "9" * 3000):
        yield Case(
            17 if len(number) < 10 else 18,
            "in.jsonl",
            lines(f'{{"id": "b", "text": {number}}}'),
            "row invalid_number",
        )
        yield Case(18, "in.csv", f"id,text\na,{number}\n".encode(), "fine 1")
    yield Case(
        19,
        "in.jsonl",
        lines('{"id": "b", "text": ' + "[" * 1500 + "]" * 1500 + "}"),
        "row nesting_too_deep",
    )
    yield Case(20, "in.jsonl", lines('{"id": "b", "id": "c", "text": "x"}'), "row duplicate_key")
    yield Case(20, "in.csv", b"id,text,text\na,x,y\n", "source csv_header")
    for doc_id in ("", "x" * 513, "a\tb", "\u0085"):
        yield Case(21, "in.jsonl", lines(json.dumps({"id": doc_id, "text": "x"})), "row invalid_id")
        yield Case(21, "in.csv", f'id,text\na,x\n"{doc_id}",y\n'.encode(), "row invalid_id")
    for strange in (None, 1.5, True, ["a"], {"a": 1}):
        yield Case(
            21, "in.jsonl", lines(json.dumps({"id": strange, "text": "x"})), "row invalid_id"
        )
    for fine in ("../x", "a/b", "/", "e\u0301"):
        yield Case(
            21,
            "in.jsonl",
            lines(json.dumps({"id": fine, "text": "x"}), '{"id": "\u00e9", "text": "y"}'),
            "fine 3",
        )
    yield Case(21, "in/", texts(**{"b\tc_txt": b"x"}), "row invalid_id")
    yield Case(
        21, "in/", {"a.txt": b"x", "/".join(["d" * 100] * 6) + ".txt": b"y"}, "row invalid_id"
    )
    for ending, pack in packed.items():
        name = {"gz": "gzip", "zst": "zstd"}[ending]
        yield Case(1, f"in.jsonl.{ending}", pack(lines("oops")), "row invalid_json_line")
        yield Case(8, f"in.csv.{ending}", pack(b"id,text\na,x\na,y\n"), "row duplicate_custom_id")
        yield Case(9, f"in.jsonl.{ending}", pack(b""), "source empty_source")
        yield Case(12, f"in.jsonl.{ending}", pack(GOOD * 50)[:-9], f"source invalid_{name}")
        yield Case(22, f"in.jsonl.{ending}", GOOD, f"source invalid_{name}")
        yield Case(22, f"in.jsonl.{ending}", pack(pack(GOOD)), "source unsupported_format")
        yield Case(22, f"in.parquet.{ending}", pack(b"PAR1"), "source unsupported_format")
        yield Case(22, "in.jsonl", pack(GOOD), "source unsupported_format")
    yield Case(23, "in.csv", b"id,text\na,x\nb\n", "row csv_ragged")
    yield Case(23, "in.csv", b"id,text\na,x\nb,y,z\n", "row csv_ragged")
    yield Case(23, "in.csv", b'id,text\na,x\nb,"y\nc,z\n', "source csv_unclosed_quote")
    yield Case(23, "in.csv", b'id,text\na,x\nb,"y"z\n', "row csv_malformed")
    yield Case(23, "in.csv", b"id;text\na;x\n", "fine 1")
    yield Case(23, "in.csv", b"id,text\na,=1+1\n", "fine 1")
    # Arrow's own reader stops at 64 levels
    yield Case(19, "in.parquet", nested("parquet", 80), "source nesting_too_deep")
    yield Case(24, "in.parquet", encrypted(), "source invalid_parquet")
    for kind in KINDS:
        yield from of_tables(kind)


def of_tables(kind: str) -> Iterator[Case]:
    """What can be wrong in Parquet, and in both forms of Arrow."""
    name, code = f"in.{kind}", "invalid_parquet" if kind == "parquet" else "invalid_arrow"
    whole = table(kind, {"id": [str(n) for n in range(90)], "text": ["x"] * 90})
    yield Case(3, name, table(kind, {"key": ["a"], "text": ["x"]}), "source missing_column")
    yield Case(3, name, table(kind, {"id": ["a", "b"], "text": ["x", None]}), "row missing_field")
    yield Case(8, name, named(kind, "good"), "row duplicate_custom_id")
    yield Case(
        9,
        name,
        table(kind, {"id": pa.array([], pa.string()), "text": pa.array([], pa.string())}),
        "source empty_source",
    )
    yield Case(9, name, b"", f"source {code}")
    yield Case(11, name, cell(kind, "x" * 7000), "row body_too_large")
    yield Case(12, name, whole[: len(whole) // 2], f"source {code}")
    yield Case(13, name, latin(kind), "row invalid_encoding")
    yield Case(14, name, cell(kind, "a\u2028b"), "fine 2")
    yield Case(15, name, cell(kind, "a\0b"), "row nul_character")
    yield Case(
        20,
        name,
        table(kind, pa.table([["a"], ["x"], ["y"]], names=["id", "text", "text"])),
        "source duplicate_column",
    )
    for number in (float("nan"), float("-inf")):
        yield Case(
            17,
            name,
            table(kind, {"id": ["good", "bad"], "text": [1.0, number]}),
            "row invalid_number",
        )
    for doc_id in (None, "", "x" * 513, "a\nb"):
        yield Case(21, name, named(kind, doc_id), "row invalid_id")
    yield Case(21, name, table(kind, {"id": [1, 2], "text": ["x", "y"]}), "fine 2")
    yield Case(24, name, GOOD, f"source {code}")
    yield Case(24, name, table(kind, {"id": [1.5, 2.5], "text": ["x", "y"]}), "rows invalid_id")
    yield Case(
        24, name, table(kind, {"id": ["a", "b"], "text": [b"\x00", b"x"]}), "rows invalid_type"
    )
    yield Case(24, name, table(kind, {"id": ["a"], "text": [[{"deep": 1}]]}), "fine 1")


def by_name() -> JobSpec:
    return PLAIN.model_copy(update={"id_field": "name"})


def write(tmp_path: Path, case: Case) -> str:
    path = tmp_path / case.name
    if isinstance(case.content, bytes):
        path.write_bytes(case.content)
        return str(path)
    path.mkdir()
    for name, content in case.content.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return f"{path}/"


def outcome(found: Survey) -> str:
    codes = [refusal.row.code for refusal in found.refused]
    return f"row{'s' * (len(codes) > 1)} {codes[0]}" if codes else f"fine {found.total}"


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: f"{case.row}-{case.name}")
def test_bad_input_is_said_by_its_row(tmp_path: Path, case: Case) -> None:
    """Each row of the catalogue ends as it says, in every format, with the file's name; and the pin
    gives the same rows."""
    where = write(tmp_path, case)
    if case.expected.startswith("source "):
        with pytest.raises(SourceError) as caught:
            survey(open_source(where, case.spec, LIMITS), case.spec)
        assert f"source {caught.value.code}" == case.expected
        assert case.name.rstrip("/") in str(caught.value)
        return
    found = survey(open_source(where, case.spec, LIMITS), case.spec)
    assert outcome(found) == case.expected
    for refusal in found.refused:
        row = refusal.row
        assert str(tmp_path) in str(row)
        assert row.fix
        assert row.line
    pin = json.loads(json.dumps(found.pin))
    fed = [
        row.doc_id
        for row in open_source(pin, case.spec, LIMITS).documents({})
        if row.line not in lines_of(found)
    ]
    assert len(fed) == found.total - len(found.refused)


def lines_of(found: Survey) -> set[int]:
    return {refusal.row.line for refusal in found.refused}


def test_every_row_of_the_catalogue_has_a_case() -> None:
    """Rows 1 to 24; 10 is a limit of batch files, which jobs have not, and 25 has tests of its own
    below."""
    assert {case.row for case in cases()} == set(range(1, 25)) - {10}


FORMS: dict[str, bytes | dict[str, bytes]] = {
    "in.jsonl": GOOD + b'{"id": "b", "text": "x"}\n',
    "in.jsonl.gz": gzip.compress(GOOD),
    "in.jsonl.zst": zstd.compress(GOOD),
    "in.csv": b"id,text\na,x\n",
    "in.tsv": b"id\ttext\na\tx\n",
    **{f"in.{kind}": table(kind, {"id": ["a"], "text": ["x"]}) for kind in KINDS},
    "in/": {"a.txt": b"x", "b.txt": b"y"},
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("how", ["changed", "gone"])
def test_a_source_that_changes_or_vanishes_is_never_read(
    tmp_path: Path, name: str, how: str
) -> None:
    """Row 25: other content is `source_changed` for the feeder and for a worker, a file that is
    gone can come back."""
    where = write(tmp_path, Case(25, name, FORMS[name], ""))
    pin = survey(open_source(where, PLAIN), PLAIN).pin
    first = next(iter(open_source(pin, PLAIN).documents({})))
    assert isinstance(first, Document)
    path = Path(where) / "a.txt" if name == "in/" else Path(where)
    if how == "gone":
        path.unlink()
        if name == "in/":
            (Path(where) / "b.txt").unlink()
    else:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(bytes(content))
        os.utime(path, (1, 1))
    expected: Any = (SourceChanged,) if how == "changed" else (SourceUnavailable, SourceChanged)
    with pytest.raises(expected):
        list(open_source(pin, PLAIN).documents({}))
    with pytest.raises(expected):
        open_source(pin, PLAIN).fetch(first.position)


@pytest.mark.parametrize("name", [name for name in FORMS if name != "in/"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "link to a device"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    """Row 25: a folder, a pipe and a device are refused at once, whatever their names promise."""
    path = tmp_path / name
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    where = Path("/dev/zero") if kind == "device" else path
    with pytest.raises(SourceError, match="not_a_regular_file"):
        survey(
            open_source(
                where, PLAIN.model_copy(update={"format": "csv"} if kind == "device" else {})
            ),
            PLAIN,
        )


@pytest.mark.parametrize("name", [name for name in FORMS if name != "in/"])
def test_a_link_out_of_the_roots_is_not_followed(tmp_path: Path, name: str) -> None:
    """Row 25: a remote door reads nothing that lies outside its roots, of any form."""
    (tmp_path / "root").mkdir()
    write(tmp_path, Case(25, name, FORMS[name], ""))
    (tmp_path / "root" / name).symlink_to(tmp_path / name)
    roots = ProducerSettings(source_roots=(str(tmp_path / "root"),))
    with pytest.raises(SourceError, match="source_forbidden"):
        survey(open_source(tmp_path / "root" / name, PLAIN, roots, remote=True), PLAIN)
