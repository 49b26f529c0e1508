"""How a row becomes what is asked: messages in a column, examples, texts that are cut, blanks that
are taken out."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from penstock_producer import JobSpec, SourceError, SourceUnavailable, SpecError
from penstock_producer.accepting.survey import survey
from penstock_producer.errors import InvalidDocument
from penstock_producer.open_job import DocumentChecker
from penstock_producer.prompts.examples import MAX_BYTES, MAX_EXAMPLES
from penstock_producer.prompts.messages import MAX_MESSAGES
from penstock_producer.prompts.tokens import MARK, compressed, cut_of
from penstock_producer.rows import BadRow, Document, Tally
from penstock_producer.sources import open_source

HI = [{"role": "user", "content": "hi"}]
CHAT = JobSpec(model="m", messages_field="chat")


def rows(
    tmp_path: Path, spec: JobSpec, *records: Any, name: str = "in.jsonl"
) -> list[Document | BadRow]:
    path = tmp_path / name
    path.write_text(
        "".join(json.dumps({"id": str(n), **record}) + "\n" for n, record in enumerate(records))
    )
    return list(open_source(path, spec).documents({}))


def body(tmp_path: Path, spec: JobSpec, **record: Any) -> dict[str, Any]:
    (row,) = rows(tmp_path, spec, record)
    assert isinstance(row, Document), row
    found: dict[str, Any] = json.loads(row.body)
    return found


def bad(tmp_path: Path, spec: JobSpec, **record: Any) -> BadRow:
    (row,) = rows(tmp_path, spec, record)
    assert isinstance(row, BadRow), row
    assert row.fix
    assert len(row.seen) <= 80
    return row


# -- messages in a column --------------------------------------------------------------------------


def test_a_column_of_messages_is_sent_as_it_is(tmp_path: Path) -> None:
    """No prompt is needed; the job's system message goes before, and parameters as with a
    prompt."""
    spec = JobSpec(model="m", messages_field="chat", system="Be brief.", params={"max_tokens": 7})
    tool = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function"}]}
    parts = {
        "role": "user",
        "content": [
            {"type": "text", "text": "a"},
            {"type": "image_url", "image_url": {"url": "u"}},
        ],
    }
    given = [*HI, tool, {"role": "tool", "tool_call_id": "c", "content": "42"}, parts]
    asked = body(tmp_path, spec, chat=given)
    assert asked == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, *given],
        "max_tokens": 7,
    }
    own = {"role": "developer", "content": "row"}
    assert body(tmp_path, spec, chat=[own, *HI])["messages"] == [
        {"role": "system", "content": "Be brief."},
        own,
        *HI,
    ]


def test_messages_of_a_table_come_as_json_text_and_with_nulls(tmp_path: Path) -> None:
    """CSV has the list as JSON text; Parquet fills the fields that a message lacks with nulls,
    which are not sent."""
    path = tmp_path / "in.csv"
    path.write_text('id,chat\n1,"' + json.dumps(HI).replace('"', '""') + '"\n2,hi\n3,\n')
    good, text, empty = open_source(path, CHAT).documents({})
    assert isinstance(good, Document)
    assert json.loads(good.body)["messages"] == HI
    assert isinstance(text, BadRow)
    assert isinstance(empty, BadRow)
    assert (text.code, text.field, empty.code) == ("invalid_messages", "chat", "invalid_messages")
    assert 'write JSON, such as [{"role"' in text.fix
    filled = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "a", "image_url": None}],
            "name": None,
        }
    ]
    assert body(tmp_path, CHAT, chat=filled)["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "a"}]}
    ]


@pytest.mark.parametrize(
    ("given", "code", "field"),
    [
        ([], "invalid_messages", "chat"),
        ({"role": "user", "content": "x"}, "invalid_messages", "chat"),
        (7, "invalid_messages", "chat"),
        (["hi"], "invalid_messages", "chat[0]"),
        ([{"content": "x"}], "invalid_messages", "chat[0].role"),
        ([{"role": ["user"], "content": "x"}], "invalid_messages", "chat[0].role"),
        ([*HI, {"role": "boss", "content": "x"}], "invalid_messages", "chat[1].role"),
        ([{"role": "user"}], "invalid_messages", "chat[0].content"),
        ([{"role": "assistant", "content": None}], "invalid_messages", "chat[0].content"),
        ([{"role": "user", "content": 5}], "invalid_messages", "chat[0].content"),
        ([{"role": "user", "content": []}], "invalid_messages", "chat[0].content"),
        ([{"role": "user", "content": ["x"]}], "invalid_messages", "chat[0].content[0]"),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            "invalid_messages",
            "chat[0].content[0].text",
        ),
        ([{"role": "system", "content": "x"}], "invalid_messages", "chat"),
        (HI * (MAX_MESSAGES + 1), "invalid_messages", "chat"),
        ("[" * 100_000, "invalid_messages", "chat"),
        ('[{"role": "user", "content": "\\u0000"}]', "invalid_messages", "chat"),
        ('[{"role": "user", "content": "\\ud800"}]', "invalid_messages", "chat"),
        ('[{"role": "user", "content": NaN}]', "invalid_messages", "chat"),
        (None, "missing_field", "chat"),
    ],
)
def test_a_column_that_holds_no_messages_is_a_bad_row(
    tmp_path: Path, given: Any, code: str, field: str
) -> None:
    """The row is named with the place inside the column, and what was seen there; the others go
    on."""
    row = bad(tmp_path, CHAT, chat=given)
    assert (row.code, row.field, row.doc_id) == (code, field, "0")


def test_a_column_of_messages_may_be_large_but_not_larger_than_a_request(tmp_path: Path) -> None:
    """Megabytes are read in a moment; what is beyond the limit of requests is refused by name."""
    began = time.process_time()
    assert (
        len(
            body(tmp_path, CHAT, chat=[{"role": "user", "content": "x" * 4_000_000}])["messages"][
                0
            ]["content"]
        )
        == 4_000_000
    )
    text = json.dumps([{"role": "user", "content": "é" * 1_000_000}])
    assert len(body(tmp_path, CHAT, chat=text)["messages"][0]["content"]) == 1_000_000
    assert time.process_time() - began < 5
    with pytest.raises(InvalidDocument) as refused:
        DocumentChecker(CHAT, 10_000, 5_000).check(
            "a", {"chat": [{"role": "user", "content": "x" * 6_000}]}
        )
    assert refused.value.code == "body_too_large"


def test_messages_and_a_prompt_or_another_endpoint_do_not_go_together(tmp_path: Path) -> None:
    """Refused where the job is submitted, with the field."""
    for given, pointer in (
        ({"messages_field": "chat", "prompt": "{x}"}, "/messages_field"),
        ({"messages_field": "chat", "truncate": {"chat": 5}}, "/truncate"),
        ({"examples": [{"input": "a", "output": "b"}]}, "/examples"),
        ({"compress_prompt": True}, "/compress_prompt"),
        ({"truncate": {"text": 5}}, "/truncate"),
    ):
        with pytest.raises(SpecError) as refused:
            JobSpec.from_json({"model": "m", **given})
        assert [problem.pointer for problem in refused.value.problems] == [pointer]
    with pytest.raises(SpecError, match="/messages_field: /v1/responses takes no chat messages"):
        rows(
            tmp_path,
            JobSpec(model="m", messages_field="chat", endpoint="/v1/responses"),
            {"chat": HI},
        )


# -- examples --------------------------------------------------------------------------------------

EXAMPLES: list[dict[str, Any]] = [
    {"input": {"text": "  great  "}, "output": "positive"},
    {"input": "Text: awful", "output": {"label": "negative"}},
    {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "neutral"}]},
]


def test_examples_stand_between_the_system_message_and_the_document(tmp_path: Path) -> None:
    """Records are rendered by the job's prompt, texts are as they are, and outputs that are no text
    are JSON."""
    spec = JobSpec(model="m", system="S", prompt="Text: {text}", examples=EXAMPLES)
    shown = [
        {"role": "user", "content": "Text:   great  "},
        {"role": "assistant", "content": "positive"},
        {"role": "user", "content": "Text: awful"},
        {"role": "assistant", "content": '{"label": "negative"}'},
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "neutral"},
    ]
    system, user = {"role": "system", "content": "S"}, {"role": "user", "content": "Text: doc"}
    assert body(tmp_path, spec, text="doc")["messages"] == [system, *shown, user]
    again = JobSpec.accepted(json.loads(json.dumps(spec.to_json())))
    assert body(tmp_path, again, text="doc")["messages"] == [system, *shown, user]
    with_own = JobSpec(model="m", messages_field="chat", system="S", examples=EXAMPLES[1:])
    own = {"role": "system", "content": "row"}
    assert body(tmp_path, with_own, chat=[own, *HI])["messages"] == [system, own, *shown[2:], *HI]


def test_examples_are_cut_and_compressed_as_documents_are(tmp_path: Path) -> None:
    """What the model is shown has the form of what it is asked; it is not counted among the
    rows."""
    spec = JobSpec(
        model="m",
        prompt="Text:  {text}",
        examples=EXAMPLES[:1],
        truncate={"text": "4:tail"},
        compress_prompt=True,
    )
    path = tmp_path / "in.jsonl"
    path.write_text('{"id": 1, "text": "x"}\n')
    source = open_source(path, spec)
    (row,) = source.documents({})
    assert isinstance(row, Document)
    assert [one["content"] for one in json.loads(row.body)["messages"]] == [
        "Text: at",
        "positive",
        "Text: x",
    ]
    assert source.tally == Tally({}, 1)


@pytest.mark.parametrize(
    ("examples", "pointer"),
    [
        (["x"], "/examples/0"),
        ([{"input": "a"}], "/examples/0"),
        ([{"input": "a", "output": "b", "weight": 2}], "/examples/0"),
        ([{"input": 5, "output": "b"}], "/examples/0/input"),
        ([{"input": {}, "output": "b"}], "/examples/0/input"),
        ([{"input": "a", "output": ""}], "/examples/0/output"),
        ([{"input": "a", "output": None}], "/examples/0/output"),
        ([{"messages": []}], "/examples/0/messages"),
        ([{"messages": HI}], "/examples/0/messages"),
        (
            [
                {
                    "messages": [
                        {"role": "system", "content": "s"},
                        {"role": "assistant", "content": "a"},
                    ]
                }
            ],
            "/examples/0/messages",
        ),
        ([{"input": "a", "output": float("nan")}], "/examples"),
        ([{"input": "a", "output": "\ud800"}], "/examples"),
        ([{"input": "a\x00", "output": "b"}], "/examples/0"),
        ([{"input": "a", "output": object()}], "/examples"),
        ([{"input": "x" * MAX_BYTES, "output": "b"}], "/examples"),
        ([{"input": "a", "output": "b"}] * (MAX_EXAMPLES + 1), "/examples"),
    ],
)
def test_examples_that_cannot_be_used_are_refused_with_their_place(
    examples: Any, pointer: str
) -> None:
    """Wrong shapes, values that JSON lacks, and what is too much for every request, before a row is
    read."""
    with pytest.raises(SpecError) as refused:
        JobSpec(model="m", prompt="{text}", examples=examples)
    first = refused.value.problems[0]
    assert first.pointer == pointer
    assert first.fix


def test_an_example_that_the_prompt_cannot_be_rendered_for_is_refused(tmp_path: Path) -> None:
    """The record lacks a column, or there is no prompt to render it with; found before a row is
    paid for."""
    for spec in (
        JobSpec(model="m", prompt="{text}", examples=[{"input": {"txt": "x"}, "output": "y"}]),
        JobSpec(
            model="m",
            prompt="{{ a.b }}",
            template="jinja",
            examples=[{"input": {"a": 1}, "output": "y"}],
        ),
        JobSpec(
            model="m", messages_field="text", examples=[{"input": {"text": "x"}, "output": "y"}]
        ),
    ):
        with pytest.raises(SpecError) as refused:
            rows(tmp_path, spec, {"text": "x"})
        assert refused.value.problems[0].pointer == "/examples/0/input"


# -- texts that are cut ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        (4, "0123"),
        ("4", "0123"),
        ("4:head", "0123"),
        ("4:tail", "6789"),
        ("4:ends", "0189"),
        ("5:ends", "01289"),
        (10, None),
        ("10:ends", None),
    ],
)
def test_a_text_is_cut_where_the_policy_says(policy: int | str, wanted: str | None) -> None:
    """The beginning, the end, or both; never more characters than asked for."""
    assert cut_of(policy).of("0123456789") == (wanted or "0123456789")


def test_a_cut_in_the_middle_is_marked() -> None:
    """Where there is room for the mark, the model sees that something is missing; the mark
    counts."""
    found = cut_of("100:ends").of("a" * 500 + "b" * 500)
    assert len(found) == 100
    assert found.startswith("a" * 48 + MARK + "b")


@pytest.mark.parametrize(
    "policy",
    [
        0,
        -1,
        True,
        1.5,
        "",
        "x",
        "0",
        "-5",
        "8000:middle",
        "8 000",
        "10" * 6,
        "2000x",
        "0t",
        "5:",
        None,
    ],
)
def test_a_policy_that_cannot_be_used_is_refused(policy: Any) -> None:
    """With what to write instead."""
    with pytest.raises(SpecError) as refused:
        JobSpec(model="m", prompt="{text}", truncate={"text": policy})
    problem = refused.value.problems[0]
    assert problem.pointer.startswith("/truncate/text")
    assert problem.fix
    assert "8000, or of tokens, such as 2000t" in problem.fix or not isinstance(policy, str)


@pytest.mark.parametrize(
    "policy", ["10t", "10tok", "10 tokens", "10t:head", "10t:tail", "10t:ends"]
)
@pytest.mark.parametrize(
    "text", ["word " * 50, "слово " * 50, "字" * 100, "a" * 40 + "é", "🜁" * 30, "half \ud800 " * 30]
)
def test_a_limit_in_tokens_keeps_whole_characters(policy: str, text: str) -> None:
    """Without a tokenizer 4 characters of plain English are one, and 3 bytes of other texts;
    characters stay whole."""
    cut = cut_of(policy)
    kept = cut.of(text)
    parts = kept.split(MARK)
    assert text.startswith(parts[0]) or cut.keep == "tail"
    assert text.endswith(parts[-1]) or cut.keep == "head"
    most = 40 if text.isascii() else 30
    assert most // 2 <= len("".join(parts).encode(errors="replace")) <= most
    assert cut.of("short") == "short"


def test_few_tokens_of_both_ends_have_no_mark() -> None:
    """A mark that would take all of them is left out."""
    assert cut_of("2t:ends").of("abcd" + "x" * 100 + "efgh") == "abcdefgh"


def test_a_tokenizer_that_is_not_there_is_refused_at_submit_and_waited_for_later(
    tmp_path: Path,
) -> None:
    """The job names file and digest: another file under its path is not taken for it, and jobs wait
    for the right one."""
    limited = {"model": "m", "prompt": "{text}", "truncate": {"text": "2t"}}
    with pytest.raises(SpecError, match=r"/tokenizer: .* cannot be read"):
        JobSpec.from_json(limited | {"tokenizer": str(tmp_path)}).with_pinned_tokenizer()
    with pytest.raises(SpecError, match="there is nothing that it would count"):
        JobSpec.from_json(limited | {"truncate": {"text": 2}, "tokenizer": "x"})
    (tmp_path / "tokenizer.json").write_text("{}")
    spec = JobSpec.from_json(limited | {"tokenizer": str(tmp_path)}).with_pinned_tokenizer()
    assert str(spec.tokenizer).startswith(f"{tmp_path}/tokenizer.json#sha256=")
    assert spec.with_pinned_tokenizer() == spec
    (tmp_path / "tokenizer.json").write_text("{} ")
    with pytest.raises(SourceUnavailable, match="not the file that the job was submitted with"):
        rows(tmp_path, spec, {"text": "x"})


def test_rows_that_are_cut_are_counted_and_nothing_else_changes(tmp_path: Path) -> None:
    """The survey keeps with the job how many rows were cut, by column; a nested column is cut
    without touching the row."""
    spec = JobSpec(
        model="m", prompt="{text}|{user.name}|{note}", truncate={"text": 3, "user.name": "2:tail"}
    )
    user = {"name": "Anna", "age": 3}
    assert (
        body(tmp_path, spec, text="abcdef", user=user, note="abcdef")["messages"][0]["content"]
        == "abc|na|abcdef"
    )
    path = tmp_path / "in.jsonl"
    path.write_text(
        '{"id":1,"text":"abcdef","user":{"name":"Bo"},"note":1}\n'
        '{"id":2,"text":"abc","user":{"name":"Bo"},"note":1}\n'
        '{"id":3,"text":"abcd","user":{"name":"Cleo"},"note":1}\n'
        '{"id":4,"text":"abcd","user":{"name":"Cleo"}}\n'
    )
    found = survey(open_source(path, spec), spec.model_copy(update={"max_bad_rows": 1}))
    assert Tally.of_pin(found.pin) == Tally({"text": 2, "user.name": 1}, 0)
    assert [refusal.row.line for refusal in found.refused] == [4]


def test_only_texts_of_the_prompt_can_be_cut(tmp_path: Path) -> None:
    """A list is a bad row rather than sent whole, numbers and nulls are no texts, and a column the
    prompt lacks is refused."""
    spec = JobSpec(model="m", prompt='{text|default:"-"}', truncate={"text": 2})
    assert body(tmp_path, spec, text=12345)["messages"][0]["content"] == "12345"
    assert body(tmp_path, spec, text=None)["messages"][0]["content"] == "-"
    assert bad(tmp_path, spec, text=["a", "b", "c"]).code == "truncate_not_text"
    with pytest.raises(SpecError, match="did you mean 'text'"):
        rows(tmp_path, JobSpec(model="m", prompt="{text}", truncate={"txt": 2}), {"text": "x"})
    jinja = JobSpec(model="m", prompt="{{ record['a b'] }}", template="jinja", truncate={"a b": 2})
    assert body(tmp_path, jinja, **{"a b": "xyz"})["messages"][0]["content"] == "xy"


# -- blanks that are taken out ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a  b\t\tc \u00a0 d", "a b c d"),
        ("a   \r\nb \n\n\n\nc\n", "a\nb\n\nc"),
        ("\n\n a", " a"),
        ("- a\n    - b   c\n\tcode", "- a\n    - b c\n\tcode"),
        ('{"k": "two  blanks"}   \nx  y', '{"k": "two  blanks"}\nx y'),
        ("```py\nx  =  1\n\n\n\ny\n```\na  b", "```py\nx  =  1\n\n\n\ny\n```\na b"),
        ("~~~\na  b\n```\nc  d\n~~~~\ne  f", "~~~\na  b\n```\nc  d\n~~~~\ne f"),
        ("```\nnever  closed\n\n\n", "```\nnever  closed\n\n\n"),
        ("", ""),
        ("  \n\t\n", ""),
    ],
)
def test_blanks_that_say_nothing_are_taken_out(text: str, wanted: str) -> None:
    """Runs of blanks and blank lines go; indentation, fenced code and lines with quoted strings
    stay; twice is as once."""
    assert compressed(text) == wanted
    assert compressed(wanted) == wanted


def test_what_compression_saves_is_counted(tmp_path: Path) -> None:
    """In prompts and in the users' texts of messages; a job without the option sends what it was
    given."""
    path = tmp_path / "in.jsonl"
    path.write_text('{"id": 1, "text": "a    b"}\n{"id": 2, "text": "a b"}\n')
    for given, saved in ((True, 3), (False, 0)):
        source = open_source(path, JobSpec(model="m", prompt="{text}", compress_prompt=given))
        assert len(list(source.documents({}))) == 2
        assert source.tally.saved_chars == saved
    chat = JobSpec(model="m", messages_field="chat", compress_prompt=True)
    said = [
        {"role": "system", "content": "a  b"},
        {"role": "user", "content": [{"type": "text", "text": "a  b"}]},
    ]
    assert body(tmp_path, chat, chat=said)["messages"][1]["content"][0]["text"] == "a b"
    assert body(tmp_path, chat, chat=said)["messages"][0]["content"] == "a  b"


def test_hostile_texts_are_compressed_in_a_moment() -> None:
    """Long runs of blanks, quotes, fences and empty lines take time in proportion."""
    began = time.process_time()
    for text in (
        " " * 400_000,
        '"' * 400_000,
        "`" * 400_000,
        "a " * 200_000,
        "\n" * 400_000,
        "```\n" * 100_000,
    ):
        compressed(text)
    assert time.process_time() - began < 4


def test_a_job_that_says_nothing_of_these_is_the_same_job_as_before(tmp_path: Path) -> None:
    """The digest of a job does not change with the release that learned these options."""
    from penstock_producer.accepting.new_jobs import options_of

    stored = options_of(JobSpec(model="m", prompt="{text}"))
    assert (
        not {
            "messages_field",
            "examples",
            "truncate",
            "compress_prompt",
            "image_fields",
            "over_budget",
        }
        & stored.keys()
    )
    assert options_of(JobSpec(model="m", prompt="{text}", truncate={"text": 3}))["truncate"] == {
        "text": 3
    }
    with pytest.raises(SourceError):
        survey(open_source(tmp_path / "none.jsonl", CHAT), CHAT)
