"""Every kind of odd text through every door that needs no server: one outcome each, and what is
stored obeys the rule.

The rule stands in docs/faults.md. What runs in a child is in unit/workers/children/test_child_texts.py, the
stores are in integration/ledger/test_odd_texts.py, and the doors over HTTP, Celery and a terminal
in integration/gateway/test_odd_texts.py.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attempts import make_attempt
from odd_texts import HALF, LARGE, NUL, SHORT, TEXTS, has_half

from penstock_gateway.dashboard.foreign import answer_of, json_text, prompt_of
from penstock_gateway.webhook_delivery import NotAllowed, check_url
from penstock_ledger.errors import PenstockError
from penstock_ledger.lone_surrogates import replace_surrogates
from penstock_ledger.model import DeadLetter, ItemKey
from penstock_ledger.redaction import one_line
from penstock_ledger.stored_values import json_text as stored_json
from penstock_ledger.stored_values import storable
from penstock_producer import Producer, ProducerSettings
from penstock_producer.errors import SpecError
from penstock_producer.job.spec import JobSpec
from penstock_producer.outputs import error_line, output_line
from penstock_producer.reporting.text import safe
from penstock_producer.sources import BadRow, Document, open_source
from penstock_producer.tables.columns import Table
from penstock_producer.tables.sheets import csv_lines
from penstock_workers.item.answer import Answer
from penstock_workers.item.failures import Failure, Reply, name_failure
from penstock_workers.item.settling.rows import dead_letter, result_of
from penstock_workers.lanes.batch.apis import anthropic, gemini, openai
from penstock_workers.lanes.batch.apis.output_lines import Line
from penstock_workers.lanes.batch.apis.provider import BatchAnswer, UnreadableLine

SPEC = JobSpec(prompt="{text}", model="m")

odd = pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in TEXTS.items()])
short = pytest.mark.parametrize(
    "text", [pytest.param(text, id=name) for name, text in SHORT.items()]
)


def as_jsonl(folder: Path, text: str) -> Path:
    path = folder / "in.jsonl"
    path.write_text(json.dumps({"id": "a", "text": text}) + "\n")
    return path


def as_raw_jsonl(folder: Path, text: str) -> Path:
    """With the characters themselves, where JSON allows them."""
    path = folder / "in.jsonl"
    path.write_bytes(
        json.dumps({"id": "a", "text": text}, ensure_ascii=False).encode("utf-8", "surrogatepass")
        + b"\n"
    )
    return path


def as_csv(folder: Path, text: str) -> Path:
    path, file = folder / "in.csv", io.StringIO()
    csv.writer(file, quoting=csv.QUOTE_ALL).writerows([["id", "text"], ["a", text]])
    path.write_bytes(file.getvalue().encode("utf-8", "surrogatepass"))
    return path


def as_text(folder: Path, text: str) -> str:
    (folder / "texts").mkdir()
    (folder / "texts" / "a.txt").write_bytes(text.encode("utf-8", "surrogatepass"))
    return f"{folder}/texts/"


def as_parquet(folder: Path, text: str) -> Path:
    path = folder / "in.parquet"
    raw = pa.array([text.encode("utf-8", "surrogatepass")], pa.binary())
    pq.write_table(
        pa.table(
            {"id": ["a"], "text": raw.cast(pa.string(), safe=False) if not has_half(text) else raw}
        ),
        path,
    )
    return path


FORMATS: dict[str, Callable[[Path, str], Path | str]] = {
    "jsonl": as_jsonl,
    "raw jsonl": as_raw_jsonl,
    "csv": as_csv,
    "text": as_text,
    "parquet": as_parquet,
}


def tried(act: Callable[[], Any]) -> Any:
    """What comes of it, a refusal as a value."""
    try:
        return act()
    except (PenstockError, NotAllowed) as refused:
        return refused


@pytest.mark.parametrize(
    ("form", "text"),
    [pytest.param(form, SHORT[name], id=f"{form}, {name}") for form in FORMATS for name in SHORT]
    + [pytest.param("jsonl", LARGE, id="ten megabytes")],
)
def test_a_text_of_a_source_is_sent_as_it_is_or_refused(
    tmp_path: Path, form: str, text: str
) -> None:
    """A NUL and half an emoji are bad rows, before anything is paid; all else comes into the
    prompt, character by character."""
    row = tried(lambda: next(iter(open_source(FORMATS[form](tmp_path, text), SPEC).documents({}))))
    if isinstance(row, Document):
        assert json.loads(row.body)["messages"][0]["content"] == text
        assert not has_half(text)
        assert "\0" not in text
    else:
        assert isinstance(row, BadRow | PenstockError)
        assert has_half(text) or "\0" in text or text is LARGE
        assert not has_half(str(row))


@odd
def test_an_id_is_taken_as_it_is_or_refused(tmp_path: Path, text: str) -> None:
    """Byte for byte: no other form of the same letters, and no other blanks."""
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({"id": text, "text": "t"}) + "\n")
    (row,) = open_source(path, SPEC).documents({})
    if isinstance(row, Document):
        assert row.doc_id == text
        assert not has_half(text)
    else:
        assert isinstance(row, BadRow)
        assert not has_half(str(row))


@odd
@pytest.mark.parametrize(
    "field",
    [
        "prompt",
        "model",
        "tenant",
        "provider",
        "preprocess",
        "endpoint",
        "system",
        "params",
        "response_schema",
    ],
)
def test_a_spec_takes_a_text_as_it_is_or_refuses_it(tmp_path: Path, field: str, text: str) -> None:
    """What is accepted is in the ledger as it was given, and is found there; what is refused is
    refused in words."""
    values: dict[str, Any] = {
        "prompt": text + "{text}",
        "params": {"stop": [text]},
        "response_schema": {"type": "object", "title": text},
    }
    value = values.get(field, text)
    spec = tried(lambda: JobSpec.from_json({"prompt": "{text}", "model": "m"} | {field: value}))
    if isinstance(spec, JobSpec):
        assert orjson.loads(orjson.dumps(spec.to_json()))[field] == value
    else:
        assert len(str(spec)) < 2_000
        assert not has_half(str(spec))


@short
def test_a_job_key_is_kept_as_it_is_or_refused(tmp_path: Path, text: str) -> None:
    """The same key finds the same job; one that cannot be stored makes none."""
    settings = ProducerSettings(database_url=f"sqlite:///{tmp_path}/ledger.db")
    with Producer(settings) as producer:
        source, spec = as_jsonl(tmp_path, "t"), {"prompt": "{text}", "model": "m"}
        job = tried(lambda: producer.submit(source, spec, job_key=text))
        if isinstance(job, SpecError):
            assert not has_half(str(job))
        else:
            assert job.job_key == text
            assert producer.status(text).job.job_id == job.job_id


@short
def test_a_file_of_any_name_is_read_or_refused(tmp_path: Path, text: str) -> None:
    """A name that is not UTF-8 is not shown as raw bytes."""
    name = text.replace("\0", "").replace("/", "")[:50] + ".jsonl"
    try:
        path = tmp_path / os.fsdecode(name.encode("utf-8", "surrogateescape"))
        path.write_text('{"id":"a","text":"t"}\n')
    except (OSError, UnicodeEncodeError):
        return  # no file can have that name
    source = tried(lambda: open_source(path, SPEC))
    if isinstance(source, PenstockError):
        assert not has_half(safe(str(source)))
    else:
        assert [type(row) for row in source.documents({})] == [Document]
        assert not has_half(stored_json(source.pin()))
        assert not has_half(safe(source.uri))


def quoted(text: str) -> bytes:
    return json.dumps(text).encode()


ANSWERS: dict[str, Callable[[str], bytes]] = {
    "openai": lambda text: (
        b'{"choices":[{"message":{"content":%b},"finish_reason":"stop"}],"model":%b}'
        % (quoted(text), quoted(text[:40]))
    ),
    "anthropic": lambda text: (
        b'{"type":"message","content":[{"type":"text","text":%b}],"stop_reason":%b}'
        % (quoted(text), quoted(text[:40]))
    ),
    "gemini": lambda text: (
        b'{"candidates":[{"content":{"parts":[{"text":%b}]},"finishReason":%b}]}'
        % (quoted(text), quoted(text[:40]))
    ),
}


@pytest.mark.parametrize(
    ("form", "text"),
    [pytest.param(form, SHORT[name], id=f"{form}, {name}") for form in ANSWERS for name in SHORT]
    + [pytest.param("openai", LARGE, id="ten megabytes")],
)
def test_an_answer_of_a_model_is_a_result_whatever_its_text_is(form: str, text: str) -> None:
    """Paid once, stored byte for byte; in tables and on pages half an emoji is U+FFFD and a NUL,
    too."""
    body = ANSWERS[form](text)
    reply = name_failure(Answer(200, {"x-request-id": text[:40]}, body, 1), 0.0)
    assert isinstance(reply, Reply), reply
    assert (reply.body, reply.content) == (body, replace_surrogates(text))
    result = result_of(make_attempt(), reply)
    assert body in output_line(result)
    assert result.json() is not None
    table = Table({"endpoint": "/v1/chat/completions"})
    row = table.row(result)
    assert row[3] == storable(text)
    assert len(b"".join(csv_lines([row], table.columns)).decode()) > len(text)
    assert not has_half(answer_of(result.body).head)
    for stored in (result.request_id, result.model, result.finish_reason):
        assert not has_half(storable(stored) or "")


@odd
@pytest.mark.parametrize("status", [200, 400, 429, 500])
def test_an_error_of_a_provider_becomes_words_that_can_be_stored_and_shown(
    status: int, text: str
) -> None:
    """As JSON, and as a page that is none."""
    for body in (
        b'{"error":{"message":%b,"code":%b}}' % (quoted(text), quoted(text)),
        text.encode("utf-8", "surrogatepass"),
    ):
        failure = name_failure(Answer(status, {}, body, 1), 0.0)
        assert isinstance(failure, Failure)
        assert not has_half(failure.detail)
        assert not set(one_line(failure.detail)) & set("\n\r\0\x1b\u2028\u202e")
        assert len(failure.detail) < 5_000
        letter = dead_letter(make_attempt(), failure)
        assert orjson.loads(error_line(letter))


@short
def test_a_line_of_a_batch_is_read_whatever_its_texts_are(text: str) -> None:
    """As an answer, as an error, and as an id that is no name."""
    said, answer = quoted(text), b'{"choices":[{"message":{"content":%b}}]}' % quoted(text)
    refusal = b'{"type":"error","error":{"type":%b,"message":%b}}' % (said, said)
    lines: list[tuple[Callable[[str, Line], Any], bytes, bytes | None]] = [
        (
            openai.read_line,
            b'{"custom_id":"a","response":{"status_code":200,"request_id":%b,"body":%b}}'
            % (said, answer),
            answer,
        ),
        (
            openai.read_line,
            b'{"custom_id":"a","response":null,"error":{"code":%b,"message":%b}}' % (said, said),
            None,
        ),
        (
            openai.read_line,
            b'{"custom_id":%b,"response":{"status_code":200,"body":%b}}' % (said, answer),
            None,
        ),
        (gemini.read_line, b'{"key":"a","response":%b,"note":%b}' % (answer, said), answer),
        (
            gemini.read_line,
            b'{"key":"a","error":{"code":3,"status":%b,"message":%b}}' % (said, said),
            None,
        ),
        (
            anthropic.read_line,
            b'{"custom_id":"a","result":{"type":"succeeded","message":%b}}' % answer,
            answer,
        ),
        (
            anthropic.read_line,
            b'{"custom_id":"a","result":{"type":"errored","error":%b}}' % refusal,
            None,
        ),
        (
            anthropic.read_line,
            b'{"custom_id":"a","result":{"type":%b,"message":%b}}' % (said, answer),
            None,
        ),
    ]
    for read_line, line, expected in lines:
        read = read_line("out", Line(1, line))
        read = read.answer if isinstance(read, anthropic.Read) else read
        assert isinstance(read, BatchAnswer | UnreadableLine)
        if expected is not None:
            assert isinstance(read, BatchAnswer), read
            assert (read.status, read.body) == (200, expected)
        elif isinstance(read, BatchAnswer):
            assert not has_half(read.message or "")


@short
def test_a_dead_letter_is_written_and_shown_whatever_its_texts_are(text: str) -> None:
    """With all that strangers can put into it, as the stores give it back."""
    letter = DeadLetter(
        ItemKey("j", 1, "a"),
        storable(text[:100]),
        1,
        1,
        storable(text),
        400,
        quoted(text),
        quoted(text),
    )
    assert orjson.loads(error_line(letter))["custom_id"] == "a"
    assert not any(has_half(turn.text.head) for turn in prompt_of(quoted(text)))
    assert not has_half(json_text(quoted(text)))


@odd
def test_an_address_for_webhooks_is_usable_or_refused(text: str) -> None:
    """In its host and in its path."""
    for url in (
        text,
        f"https://{text}/",
        f"https://example.com/{text}",
        f"https://example.com/?a={text}",
    ):
        refused = tried(partial(check_url, url, ()))
        if isinstance(refused, NotAllowed):
            assert len(str(refused)) < 1_000
            assert not has_half(safe(str(refused)))
        else:
            assert not has_half(url)


def test_the_table_has_what_it_is_for() -> None:
    """No kind of text leaves it unseen."""
    assert {NUL, HALF, LARGE} <= set(TEXTS.values())
    assert any("\u2028" in text for text in TEXTS.values())
    assert any("\u202e" in text for text in TEXTS.values())
