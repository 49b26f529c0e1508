"""The parser of uploads: the same parts however a body is cut, and no body that it cannot end
with."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_gateway.files import multipart
from penstock_gateway.files.form import UploadForm, shown_name
from penstock_gateway.files.multipart import (
    Data,
    FormPart,
    MalformedForm,
    MultipartParser,
    PartEnd,
    boundary_of,
)
from penstock_gateway.files.routes import NoSuchRange, Span, asked_span
from penstock_gateway.refused import Refused

Parts = list[tuple[str, str | None, bytes]]
PLAIN = st.text("abcdefghij[]_", min_size=1, max_size=12)
# Bytes of which boundaries are made come often, so that halves of them do.
BODIES = st.lists(
    st.sampled_from([b"\r", b"\n", b"\r\n", b"-", b"--", b"--b", b"b", b"x" * 50, b"\0"]),
    max_size=12,
).map(b"".join)


def body_of(parts: Sequence[tuple[str, str | None, bytes]], boundary: bytes = b"bound") -> bytes:
    made = b"".join(
        b'--%b\r\nContent-Disposition: form-data; name="%b"%b\r\nContent-Type: x/y\r\n\r\n%b\r\n'
        % (
            boundary,
            name.encode(),
            b"" if filename is None else b'; filename="%b"' % filename.encode(),
            data,
        )
        for name, filename, data in parts
    )
    return made + b"--" + boundary + b"--\r\n"


def parsed(chunks: Sequence[bytes], boundary: str = "bound") -> Parts | str:
    """The parts of a body, or what is said of it."""
    parser, found = MultipartParser(boundary), Parts()
    name, filename, data = "", None, b""
    try:
        for chunk in chunks:
            for event in parser.feed(chunk):
                if isinstance(event, FormPart):
                    name, filename, data = event.name, event.filename, b""
                elif isinstance(event, Data):
                    data += event.data
                else:
                    assert isinstance(event, PartEnd)
                    found.append((name, filename, data))
        parser.end()
    except MalformedForm as error:
        return str(error)
    return found


def cut(body: bytes, places: Sequence[int]) -> list[bytes]:
    ends = sorted({place % (len(body) + 1) for place in places} | {len(body)})
    return [body[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(
    st.lists(st.tuples(PLAIN, st.none() | PLAIN, BODIES), max_size=5),
    st.lists(st.integers(0, 10_000), max_size=40),
)
def test_parts_do_not_depend_on_how_a_body_is_cut(parts: Parts, places: list[int]) -> None:
    """What a client sent comes out, whichever chunks the network made of it."""
    body = body_of(parts)
    assert parsed(cut(body, places)) == parts
    assert parsed([body[at : at + 1] for at in range(len(body))]) == parts


@given(
    st.lists(
        st.sampled_from(
            [
                b"--bound",
                b"--bound--",
                b"\r\n",
                b"\r\n--bound\r\n",
                b"\r\n--bound--",
                b"\r\n\r\n",
                b"a: b",
                b"Content-Disposition: form-data",
                b'; name="file"',
                b'; filename="x"',
                b"; name*=utf-8''%ff",
                b" ",
                b"\0",
                b"-",
                b"x" * 9000,
                b"x" * 20_000,
                b"\xff",
            ]
        ),
        max_size=20,
    ).map(b"".join),
    st.lists(st.integers(0, 50_000), max_size=20),
)
def test_hostile_bodies_are_refused_alike_however_they_are_cut(
    body: bytes, places: list[int]
) -> None:
    """A body is parts or a refusal, and never another exception; the chunks do not decide which."""
    assert parsed(cut(body, places)) == parsed([body])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "ends before"),
        (b"--bound\r\nContent-Disposition: form-data; name=a\r\n\r\nx", "ends before"),
        (b"x" * (multipart.PREAMBLE_MAX + 100), "does not begin"),
        (b"--boundary\r\n", "followed by other text"),
        (b"--bound" + b" " * 500, "no line end"),
        (b"--bound\r\n\r\nx\r\n--bound--", "Content-Disposition"),
        (b"--bound\r\nContent-Disposition: form-data\r\n\r\nx\r\n--bound--", "no name"),
        (
            b"--bound\r\nContent-Disposition: attachment; name=a\r\n\r\nx\r\n--bound--",
            "Content-Disposition",
        ),
        (b"--bound\r\nwrong\r\n\r\nx\r\n--bound--", "name: value"),
        (b"--bound\r\nA: " + b"x" * multipart.HEADER_MAX, "8192 bytes"),
        (
            b"--bound\r\nContent-Disposition: form-data; name=a\r\nContent-Transfer-Encoding: "
            b"base64\r\n\r\nx\r\n--bound--",
            "Content-Transfer-Encoding",
        ),
        (body_of([("a", None, b"")] * 17), "more than 16 parts"),
        (body_of([]) + b"x" * (multipart.EPILOGUE_MAX + 1), "goes on after"),
    ],
)
def test_a_body_beyond_a_limit_is_refused_in_words(body: bytes, says: str) -> None:
    """Each limit of a form has a sentence of its own."""
    said = parsed([body])
    assert isinstance(said, str)
    assert says in said


def test_a_part_without_a_byte_is_followed_by_its_boundary() -> None:
    """RFC 7578 allows a part that has headers and nothing else, not even a line end."""
    head = b'--bound\r\nContent-Disposition: form-data; name="a"\r\n'
    assert parsed([head + b"\r\n--bound--"]) == [("a", None, b"")]
    assert parsed(
        [
            b"text before\r\n"
            + head
            + b"\r\n\r\n--bound  \r\n"
            + head[9:]
            + b"\r\nx\r\n--bound--after"
        ]
    ) == [
        ("a", None, b""),
        ("a", None, b"x"),
    ]


def test_a_hundred_thousand_tiny_chunks_cost_no_more_than_their_bytes() -> None:
    """The time for a body grows with its length, not with its square."""
    body = body_of([("file", "x", b"\r\n-" * 100_000)])
    started = time.process_time()
    parts = parsed([body[at : at + 3] for at in range(0, len(body), 3)])
    assert isinstance(parts, list)
    assert len(parts[0][2]) == 300_000
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("header", "boundary"),
    [
        ("multipart/form-data; boundary=abc", "abc"),
        ('Multipart/Form-Data; charset=x; boundary="a b"', "a b"),
        ("application/json", None),
        ("", None),
    ],
)
def test_the_boundary_is_the_one_of_the_header(header: str, boundary: str | None) -> None:
    """Quoted or not; another type has none."""
    assert boundary_of(header) == boundary


@pytest.mark.parametrize(
    "given", ["", "boundary=", f"boundary={'a' * 71}", 'boundary="a\u00e4"', 'boundary="a "']
)
def test_an_unusable_boundary_is_refused(given: str) -> None:
    """As RFC 2046 has it: 1 to 70 characters of a small set, no blank at the end."""
    with pytest.raises(MalformedForm, match="boundary"):
        boundary_of(f"multipart/form-data; {given}")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\a\\b.jsonl", "b.jsonl"),
        ("..", "upload"),
        ("", "upload"),
        ("a\0\u202eb", "ab"),
        ("x" * 300, "x" * 255),
    ],
)
def test_a_file_name_is_shown_and_never_a_path(given: str, kept: str) -> None:
    """Folders, control characters and marks that turn the writing around are cut off."""
    assert shown_name(given) == kept


def fill(form: UploadForm, fields: list[tuple[str, str]]) -> None:
    form.begin(FormPart("file", "x.jsonl"))
    for name, value in fields:
        form.begin(FormPart(name, None))
        form.add(name, value.encode())
    form.check()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ([("purpose", "nonsense")], "purpose"),
        ([("purpose", "batch_output")], "purpose"),
        ([], "purpose"),
        ([("purpose", "batch"), ("expires_after[seconds]", "3600")], "expires_after[anchor]"),
        ([("purpose", "batch"), ("expires_after[anchor]", "created_at")], "expires_after[seconds]"),
        (
            [
                ("purpose", "batch"),
                ("expires_after[anchor]", "created_at"),
                ("expires_after[seconds]", "3599"),
            ],
            "expires_after[seconds]",
        ),
        (
            [
                ("purpose", "batch"),
                ("expires_after[anchor]", "created_at"),
                ("expires_after[seconds]", "1e4"),
            ],
            "expires_after[seconds]",
        ),
        ([("purpose", "batch"), ("purpose", "batch")], "purpose"),
        ([("tenant", "other")], "tenant"),
        ([("file", "text")], "file"),
        ([("purpose", "x" * 1025)], "purpose"),
    ],
)
def test_fields_of_an_upload_are_checked(fields: list[tuple[str, str]], param: str) -> None:
    """What is missing, unknown, twice or beyond its bounds is refused with its name."""
    with pytest.raises(Refused) as refused:
        fill(UploadForm(), fields)
    assert refused.value.param == param
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("asked", "span"),
    [
        ("bytes=0-0", Span(0, 1)),
        ("bytes=2-", Span(2, 10)),
        ("bytes=-3", Span(7, 10)),
        ("bytes=5-99", Span(5, 10)),
        ("bytes=-99", Span(0, 10)),
        ("bytes=5-2", None),
        ("bytes=0-1,3-4", None),
        ("lines=1-2", None),
        ("bytes=-", None),
        ("bytes=x", None),
        ("bytes=" + "9" * 40 + "-", None),
        (None, None),
    ],
)
def test_a_range_is_the_bytes_that_it_names(asked: str | None, span: Span | None) -> None:
    """One range of bytes; anything else is answered with the whole file, as RFC 9110 allows."""
    assert asked_span(asked, None, '"e"', 10) == span
    assert asked_span(asked, '"e"', '"e"', 10) == span
    assert asked_span(asked, '"other"', '"e"', 10) is None


@pytest.mark.parametrize("asked", ["bytes=10-", "bytes=-0", "bytes=99-100"])
def test_a_range_beyond_the_end_is_none(asked: str) -> None:
    """The file has no such byte."""
    with pytest.raises(NoSuchRange):
        asked_span(asked, None, '"e"', 10)
    with pytest.raises(NoSuchRange):
        asked_span("bytes=0-", None, '"e"', 0)
