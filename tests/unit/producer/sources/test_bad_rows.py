"""The catalogue of bad input rows: each has its code, names its field and tells the fix, and none
stops the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_producer.errors import SourceError, SpecError
from penstock_producer.job.spec import JobSpec
from penstock_producer.sources import BadRow, Document, open_source

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
PLAIN = JobSpec(prompt="Sum: {text}", model="m")


def batch(**changes: Any) -> dict[str, Any]:
    return {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": CHAT,
    } | changes


def rows(tmp_path: Path, content: bytes, spec: JobSpec | None = None) -> list[Document | BadRow]:
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    return list(open_source(path, spec or JobSpec()).documents({}))


def only_bad(tmp_path: Path, content: bytes, spec: JobSpec | None = None) -> BadRow:
    """The one bad row of ``content``, framed by two good rows that must survive."""
    good = json.dumps(
        {"id": "first", "text": "t"} if spec and spec.prompt else batch(custom_id="first")
    ).encode()
    last = good.replace(b"first", b"last")
    found = rows(tmp_path, good + b"\n" + content + b"\n" + last + b"\n", spec)
    assert [row.doc_id for row in found if isinstance(row, Document)] == ["first", "last"]
    (bad,) = [row for row in found if isinstance(row, BadRow)]
    assert bad.line == 2
    assert bad.uri.endswith("in.jsonl")
    assert bad.fix
    assert len(bad.seen) <= 80
    return bad


def dumped(**changes: Any) -> bytes:
    return json.dumps(batch(**changes)).encode()


def without(name: str) -> bytes:
    return json.dumps({key: value for key, value in batch().items() if key != name}).encode()


NUMBER = b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":["x"],"seed":%b}}'


@pytest.mark.parametrize(
    ("line", "code", "field"),
    [
        (b"not json", "invalid_json_line", None),
        (b'{"custom_id": "a"', "invalid_json_line", None),
        (b"[1]", "invalid_json_line", None),
        (b'"text"', "invalid_json_line", None),
        (b"null", "invalid_json_line", None),
        (b'{"a":"raw\x00nul, in a line that is long enough"}', "invalid_json_line", None),
        (b'{"a":"raw \x1f control"}', "invalid_json_line", None),
        (without("custom_id"), "missing_required_parameter", "custom_id"),
        (without("method"), "missing_required_parameter", "method"),
        (without("url"), "missing_required_parameter", "url"),
        (without("body"), "missing_required_parameter", "body"),
        (dumped(method="GET"), "invalid_method", "method"),
        (dumped(url="/v1/files"), "invalid_url", "url"),
        (dumped(url="/v1/embeddings"), "invalid_request", "body.input"),
        (dumped(url=["/v1/embeddings"]), "invalid_url", "url"),
        (dumped(url=None), "invalid_url", "url"),
        (dumped(body="text"), "invalid_request", "body"),
        (dumped(body={"messages": ["x"]}), "invalid_request", "body.model"),
        (dumped(body={"model": 5, "messages": ["x"]}), "invalid_request", "body.model"),
        (dumped(body={"model": "m"}), "invalid_request", "body.messages"),
        (dumped(body={"model": "m", "messages": []}), "invalid_request", "body.messages"),
        (dumped(body=CHAT | {"stream": True}), "streaming_unsupported", "body.stream"),
        (dumped(custom_id="b\u0000"), "nul_character", None),
        (dumped(body=CHAT | {"x\u0000": 1}), "nul_character", None),
        (dumped(body=CHAT | {"user": "\ud800"}), "invalid_unicode", None),
        (dumped().replace(b"hi", b"\xed\xa0\x80"), "invalid_unicode", None),
        (dumped().replace(b"hi", b"caf\xe9"), "invalid_encoding", None),
        (NUMBER % b"NaN", "invalid_number", None),
        (NUMBER % b"-Infinity", "invalid_number", None),
        (NUMBER % b"1e999", "invalid_number", None),
        (NUMBER % (b"1" * 5000), "invalid_number", None),
        (NUMBER % b"18446744073709551616", "invalid_number", None),
        (NUMBER % b"-9223372036854775809", "invalid_number", None),
        (NUMBER % (b"[" * 100_000 + b"]" * 100_000), "nesting_too_deep", None),
        (NUMBER % (b"[" * 63 + b"]" * 63), "nesting_too_deep", None),
        (b"[" * 100_000, "nesting_too_deep", None),
        (b'{"custom_id":"b",' + dumped()[1:], "duplicate_key", "custom_id"),
        (dumped()[:-1] + b',"body":{}}', "duplicate_key", "body"),
        (
            dumped().replace(b'{"model": "m"', b'{"model": "m", "model": "gpt-expensive"'),
            "duplicate_key",
            "model",
        ),
        (dumped(custom_id=""), "invalid_id", "custom_id"),
        (dumped(custom_id="x" * 513), "invalid_id", "custom_id"),
        (dumped(custom_id="é" * 257), "invalid_id", "custom_id"),
        (dumped(custom_id=7), "invalid_id", "custom_id"),
        (dumped(custom_id=None), "invalid_id", "custom_id"),
        (dumped(custom_id="a\nb"), "invalid_id", "custom_id"),
        (dumped(custom_id="a\u0085b"), "invalid_id", "custom_id"),
    ],
)
def test_bad_batch_lines(tmp_path: Path, line: bytes, code: str, field: str | None) -> None:
    """A bad batch line is one bad row with the promised code and field."""
    bad = only_bad(tmp_path, line)
    assert (bad.code, bad.field) == (code, field)
    assert code in str(bad)
    assert "line 2" in str(bad)


@pytest.mark.parametrize(
    ("record", "code", "field"),
    [
        ({"text": "t"}, "missing_required_parameter", "id"),
        ({"id": "a"}, "missing_field", "text"),
        ({"id": "a", "text": None}, "missing_field", "text"),
        ({"id": True, "text": "t"}, "invalid_id", "id"),
        ({"id": 1.5, "text": "t"}, "invalid_id", "id"),
        ({"id": ["a"], "text": "t"}, "invalid_id", "id"),
    ],
)
def test_bad_plain_records(tmp_path: Path, record: dict[str, Any], code: str, field: str) -> None:
    """A record without its id or a column of the prompt is a bad row that lists the columns there
    are."""
    bad = only_bad(tmp_path, json.dumps(record).encode(), PLAIN)
    assert (bad.code, bad.field) == (code, field)
    if code.startswith("missing"):
        assert f"columns here: {', '.join(map(repr, record))}" in bad.fix


@pytest.mark.parametrize(
    "number", [b"18446744073709551615", b"-9223372036854775808", b'"%d"' % 10**40, b"1.5"]
)
def test_numbers_within_64_bits_stay_exact(tmp_path: Path, number: bytes) -> None:
    """Whatever 64 bits hold goes through digit by digit, and any number may be text."""
    (row,) = rows(tmp_path, NUMBER % number)
    assert isinstance(row, Document)
    assert b'"seed":' + number in row.body


def test_an_escaped_backslash_is_no_nul(tmp_path: Path) -> None:
    """The text `\\u0000` written with an escaped backslash is no NUL character."""
    (row,) = rows(tmp_path, dumped(body=CHAT | {"user": "\\u0000"}))
    assert isinstance(row, Document)


def test_nesting_up_to_the_cap_is_fine(tmp_path: Path) -> None:
    """64 levels are accepted, and brackets inside text are no nesting."""
    line = NUMBER % (b"[" * 62 + b"]" * 62)
    (row,) = rows(tmp_path, line.replace(b'"x"', b'"' + b"[{" * 500 + b'"'))
    assert isinstance(row, Document)


@pytest.mark.parametrize(
    "doc_id", ["../../etc/passwd", "/", "a b", "é", "x" * 512, "🙂" * 128, "\u2028", "null", "0"]
)
def test_odd_ids_are_accepted_as_they_are(tmp_path: Path, doc_id: str) -> None:
    """Any text of 1 to 512 bytes without control characters is an id."""
    (row,) = rows(tmp_path, dumped(custom_id=doc_id))
    assert isinstance(row, Document)
    assert row.doc_id == doc_id


def test_unicode_twins_are_two_documents(tmp_path: Path) -> None:
    """NFC and NFD forms of one name differ in bytes and stay two documents."""
    found = rows(tmp_path, dumped(custom_id="é") + b"\n" + dumped(custom_id="e\u0301"))
    assert [row.doc_id for row in found] == ["é", "e\u0301"]


def test_integer_ids_become_text(tmp_path: Path) -> None:
    """An integer in the id column is its decimal text, and another id column can be named."""
    (row,) = rows(tmp_path, b'{"n": 42, "text": "t"}', PLAIN.model_copy(update={"id_field": "n"}))
    assert row.doc_id == "42"


def test_bodies_of_batch_lines_are_kept(tmp_path: Path) -> None:
    """The spec's model and params fill in what a line lacks and never override it."""
    spec = JobSpec(model="default", params={"max_tokens": 9})
    own, lacking = (
        batch(body=CHAT | {"max_tokens": 1}),
        batch(custom_id="b", body={"messages": ["x"]}),
    )
    first, second = rows(
        tmp_path, json.dumps(own).encode() + b"\n" + json.dumps(lacking).encode(), spec
    )
    assert isinstance(first, Document)
    assert isinstance(second, Document)
    assert json.loads(first.body) == CHAT | {"max_tokens": 1}
    assert json.loads(second.body) == {"model": "default", "messages": ["x"], "max_tokens": 9}


@pytest.mark.parametrize(
    ("spec", "body"),
    [
        (
            JobSpec(model="m", prompt="Sum: {text}", system="Brief.", params={"max_tokens": 5}),
            {
                "model": "m",
                "messages": [
                    {"role": "system", "content": "Brief."},
                    {"role": "user", "content": 'Sum: "é"\n'},
                ],
                "max_tokens": 5,
            },
        ),
        (
            JobSpec(model="m", prompt="{text}", endpoint="/v1/embeddings"),
            {"model": "m", "input": '"é"\n'},
        ),
        (JobSpec(lane="embed", prompt="{text}", endpoint="/v1/embeddings"), {"input": '"é"\n'}),
        (
            JobSpec(model="m", prompt="{text}", endpoint="/v1/completions"),
            {"model": "m", "prompt": '"é"\n'},
        ),
        (
            JobSpec(model="m", prompt="{text}", endpoint="/v1/responses", system="Brief."),
            {"model": "m", "input": '"é"\n', "instructions": "Brief."},
        ),
    ],
)
def test_plain_records_become_requests(tmp_path: Path, spec: JobSpec, body: dict[str, Any]) -> None:
    """The template, the system text and the params make the request that the endpoint wants."""
    (row,) = rows(tmp_path, json.dumps({"id": "a", "text": '"é"\n'}).encode(), spec)
    assert isinstance(row, Document)
    assert json.loads(row.body) == body


@pytest.mark.parametrize(
    ("spec", "content", "advice"),
    [
        (JobSpec(), b'{"id": "a", "text": "t"}', "give a prompt"),
        (PLAIN, dumped(), "leave the prompt out"),
    ],
)
def test_the_other_form_is_named_at_the_first_row(
    tmp_path: Path, spec: JobSpec, content: bytes, advice: str
) -> None:
    """A file of the other form is one clear error and not a million bad rows."""
    with pytest.raises(SourceError, match=advice):
        rows(tmp_path, content, spec)


@given(st.binary(max_size=300))
def test_no_bytes_crash_the_reader(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    """Whatever a line holds, it is a document, a bad row, or one of Penstock's errors."""
    path = tmp_path_factory.mktemp("fuzz") / "in.jsonl"
    path.write_bytes(dumped() + b"\n" + content)
    for row in open_source(path, JobSpec()).documents({}):
        assert isinstance(row, (Document, BadRow))
        if isinstance(row, BadRow):
            str(row).encode()


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=20
    )
)
def test_what_is_accepted_is_kept(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    """A body that is accepted comes out equal; nothing is rounded, cut or lost."""
    path = tmp_path_factory.mktemp("keep") / "in.jsonl"
    path.write_bytes(dumped(body=CHAT | {"extra": value}))
    (row,) = open_source(path, JobSpec()).documents({})
    if isinstance(row, Document):
        assert json.loads(row.body) == CHAT | {"extra": value}
    else:
        assert row.code in {
            "invalid_number",
            "nul_character",
            "invalid_unicode",
            "nesting_too_deep",
        }


def test_a_column_may_be_a_parameter_of_each_request(tmp_path: Path) -> None:
    """`--param-field` takes a value per row; where the row has none, the job's own counts; no name
    stands there twice."""
    path = tmp_path / "docs.jsonl"
    rows = [
        {"id": "a", "text": "x", "len": 5, "mode": "on"},
        {"id": "b", "text": "x", "len": None},
        {"id": "c", "text": "x", "len": "many"},
        {"id": "d", "text": "x", "len": 0},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = JobSpec(
        model="m",
        prompt="{text}",
        params={"max_tokens": 200, "temperature": 0},
        param_fields={"max_tokens": "len", "x.mode": "mode"},
    )
    one, two, three, four = open_source(path, spec).documents({})
    assert isinstance(one, Document)
    assert isinstance(two, Document)
    assert one.body.count(b"max_tokens") == 1
    messages = [{"role": "user", "content": "x"}]
    assert json.loads(one.body) == {
        "model": "m",
        "messages": messages,
        "temperature": 0,
        "max_tokens": 5,
        "mode": "on",
    }
    assert json.loads(two.body) == {
        "model": "m",
        "messages": messages,
        "temperature": 0,
        "max_tokens": 200,
    }
    for row, seen_value in ((three, "'many'"), (four, "0")):
        assert isinstance(row, BadRow)
        assert (row.code, row.field, row.seen) == ("invalid_parameter", "len", seen_value)
        assert row.fix == "give an integer of at least 1"


def test_a_column_of_csv_may_be_a_parameter_that_is_a_number(tmp_path: Path) -> None:
    """CSV has only texts: one is read as the number or truth value that the parameter takes, an
    empty cell as absent."""
    path = tmp_path / "docs.csv"
    path.write_text("id,text,len,logs,who\na,x,5,true,7\nb,x,,,\nc,x,many,true,7\n")
    spec = JobSpec(
        model="m",
        prompt="{text}",
        params={"max_tokens": 200},
        param_fields={"max_tokens": "len", "logprobs": "logs", "user": "who"},
    )
    one, two, three = open_source(path, spec).documents({})
    assert isinstance(one, Document)
    assert isinstance(two, Document)
    messages = [{"role": "user", "content": "x"}]
    assert json.loads(one.body) == {
        "model": "m",
        "messages": messages,
        "max_tokens": 5,
        "logprobs": True,
        "user": "7",
    }
    assert json.loads(two.body) == {
        "model": "m",
        "messages": messages,
        "max_tokens": 200,
        "user": "",
    }
    assert isinstance(three, BadRow)
    assert (three.code, three.field, three.seen) == ("invalid_parameter", "len", "'many'")


def test_a_parameter_from_a_column_that_no_row_can_have_is_refused(tmp_path: Path) -> None:
    """A misspelt column in `--param-field` is not passed over in silence where the source has a
    header."""
    path = tmp_path / "docs.csv"
    path.write_text("id,text,len\na,x,5\n")
    spec = JobSpec(model="m", prompt="{text}", param_fields={"max_tokens": "lenn"})
    with pytest.raises(
        SourceError, match=r"no column 'lenn' to take a parameter from.*'id', 'text', 'len'"
    ) as caught:
        list(open_source(path, spec).documents({}))
    assert caught.value.code == "missing_column"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"max_token": "len"}, "did you mean 'max_tokens'"),
        ({"stream": "s"}, "not streamed"),
        ({"model": "m"}, "is not a parameter"),
        ({"max_tokens": 5}, "/param_fields/max_tokens: 5 is refused"),
    ],
)
def test_a_parameter_from_a_column_is_one_that_the_endpoint_has(
    fields: dict[str, Any], told: str
) -> None:
    """Misspelt names are refused with the job, not once per row."""
    with pytest.raises(SpecError) as caught:
        JobSpec(model="m", prompt="{text}", param_fields=fields)
    assert told in str(caught.value)
    with pytest.raises(SpecError, match="columns belong to plain records"):
        JobSpec(param_fields={"max_tokens": "len"})
