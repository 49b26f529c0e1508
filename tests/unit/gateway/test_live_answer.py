"""An answer that is read as it comes: whatever was passed on, the end goes on with it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
import pytest

from penstock_gateway.direct.streams import LiveAnswer
from penstock_gateway.refused import Refused
from penstock_producer.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from penstock_producer.dialects.assembling import assembler_for
from penstock_producer.dialects.pieces import PIECE_BYTES, Delta, Piece, decode_piece, encode_piece
from penstock_producer.dialects.translation import answer_for

CHATS = [
    ("role", {"role": "assistant", "content": ""}),
    *(("text", {"reasoning_content": bit}) for bit in ("H", "m")),
    *(("text", {"content": bit}) for bit in ("Hel", "lo", " you")),
    ("call", {"tool_calls": [{"index": 0, "id": "c", "type": "function"}]}),
    ("call", {"tool_calls": [{"index": 0, "function": {"arguments": '{"x": '}}]}),
    ("call", {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
]
CHATS[6][1]["tool_calls"][0]["function"] = {"name": "f", "arguments": ""}  # type: ignore[index]


def chunks() -> Iterator[Any]:
    about = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 5, "model": "m"}
    for _, delta in CHATS:
        yield about | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield about | {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    yield about | {"choices": [], "usage": usage}


def message() -> Iterator[Any]:
    usage = {"input_tokens": 3, "output_tokens": 1}
    begun = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    yield {"type": "message_start", "message": begun | {"usage": usage}}
    blocks: list[tuple[Any, list[Any]]] = [
        (
            {"type": "thinking", "thinking": "", "signature": ""},
            [
                {"type": "thinking_delta", "thinking": "Hm"},
                {"type": "signature_delta", "signature": "sig"},
            ],
        ),
        ({"type": "redacted_thinking", "data": "x"}, []),
        (
            {"type": "text", "text": ""},
            [{"type": "text_delta", "text": bit} for bit in ("Hel", "lo")],
        ),
        (
            {"type": "tool_use", "id": "c", "name": "f", "input": {}},
            [{"type": "input_json_delta", "partial_json": bit} for bit in ('{"x": ', "1}")],
        ),
    ]
    for index, (started, deltas) in enumerate(blocks):
        yield {"type": "content_block_start", "index": index, "content_block": started}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}}
    yield {"type": "message_stop"}


def response() -> Iterator[Any]:
    """As OpenAI streams it, which is how this house writes a chat bit by bit."""
    yield from told(RESPONSES, CHAT, len(read(CHAT)[1]))


def read(endpoint: str) -> tuple[Any, list[list[Delta]], dict[str, Any]]:
    """The whole answer of an API, what each event of its stream adds, and how it begins."""
    reader = assembler_for(endpoint)
    assert reader is not None
    deltas, head = [], None
    for event in {CHAT: chunks, MESSAGES: message, RESPONSES: response}[endpoint]():
        added = list(reader.take(event, 1))
        if added:
            head = head or reader.head()
            deltas.append(added)
    assert head is not None
    return reader.whole(), deltas, head


def data_of(written: bytes) -> list[Any]:
    events = [one.split("data: ", 1)[1] for one in written.decode().split("\n\n") if one]
    return [json.loads(one) for one in events if one != "[DONE]"]


def told(endpoint: str, sent: str, pieces: int) -> list[Any]:
    """All events for a caller of one API, of an answer of another, of which so many pieces were
    passed on."""
    whole, deltas, head = read(sent)
    live = LiveAnswer(endpoint, {}, with_usage=True)
    written = b""
    for number in range(pieces):
        live.note(Piece("job", "doc", "run", number, deltas[number], head))
        written += live.taken()
    live.end()
    answer = answer_for(endpoint, orjson.dumps(whole), 1.0, {})
    return data_of(written + live.rest(answer))


def joined(endpoint: str, events: Sequence[Any]) -> Any:
    """What a client makes of events, which is their answer again."""
    reader = assembler_for(endpoint)
    assert reader is not None
    for event in events:
        reader.take(event, 1)
    whole = reader.whole()
    assert whole is not None
    return {name: value for name, value in whole.items() if name not in ("created", "created_at")}


WAYS = [
    (CHAT, CHAT),
    (CHAT, MESSAGES),
    (MESSAGES, MESSAGES),
    (MESSAGES, CHAT),
    (RESPONSES, CHAT),
    (RESPONSES, MESSAGES),
    (RESPONSES, RESPONSES),
]


@pytest.mark.parametrize(("endpoint", "sent"), WAYS)
def test_however_much_was_passed_on_the_answer_is_the_same(endpoint: str, sent: str) -> None:
    """From nothing to all of it: a client makes the same answer of the events."""
    most = len(read(sent)[1])
    plain = joined(endpoint, told(endpoint, sent, 0))
    for pieces in range(1, most + 1):
        found = joined(endpoint, told(endpoint, sent, pieces))
        assert normal(found) == normal(plain), f"after {pieces} of {most}"


def normal(answer: Any) -> Any:
    """An answer without the blanks in arguments, which a model writes as it likes."""
    return json.loads(json.dumps(answer).replace('{\\"x\\": 1}', '{\\"x\\":1}'))


@pytest.mark.parametrize(("endpoint", "sent"), WAYS)
def test_texts_come_bit_by_bit(endpoint: str, sent: str) -> None:
    """As many events with a text as the provider has sent, not one at the end."""
    events = [json.dumps(one) for one in told(endpoint, sent, len(read(sent)[1]))]
    assert sum('"lo"' in one for one in events) == 1
    assert sum('"Hel"' in one for one in events) == 1


@pytest.mark.parametrize(("endpoint", "sent"), WAYS)
def test_a_stored_answer_that_goes_on_otherwise_is_an_error(endpoint: str, sent: str) -> None:
    """What was sent cannot be taken back: nothing is added that contradicts it."""
    whole, deltas, head = read(sent)
    live = LiveAnswer(endpoint, {}, with_usage=False)
    for number, added in enumerate(deltas):
        live.note(Piece("job", "doc", "run", number, added, head))
    live.taken()
    other = orjson.dumps(whole).replace(b"Hello", b"Jello")
    with pytest.raises(Refused) as caught:
        live.rest(answer_for(endpoint, other, 1.0, {}))
    assert (caught.value.status, caught.value.code) == (502, "answer_differs")


def piece(number: int, text: str, run: str = "run") -> Piece:
    head = {"id": "c", "choices": []}
    return Piece("job", "doc", run, number, [Delta("text", text)], head)


def chat(text: str) -> bytes:
    choice = {"index": 0, "message": {"content": text}, "finish_reason": "stop"}
    return orjson.dumps({"id": "c", "choices": [choice]})


def texts(written: bytes) -> list[str]:
    found = [one["choices"][0].get("delta", {}).get("content") for one in data_of(written)]
    return [text for text in found if text]


def test_a_piece_that_is_lost_comes_with_the_rest() -> None:
    """What comes behind it is not shown: the order is that of the answer."""
    live = LiveAnswer(CHAT, {}, with_usage=False)
    live.note(piece(0, "a"))
    live.note(piece(2, "c"))
    live.note(piece(1, "b"))
    assert texts(live.taken()) == ["a"]
    assert texts(live.rest(chat("abcd"))) == ["bcd"]


def test_the_first_piece_may_be_lost_too() -> None:
    """Then nothing is shown before the answer is there."""
    live = LiveAnswer(CHAT, {}, with_usage=False)
    live.note(piece(1, "b"))
    live.note(piece(0, "a"))
    assert live.taken() == b""
    assert texts(live.rest(chat("abcd"))) == ["abcd"]


def test_pieces_of_another_try_are_not_mixed_in() -> None:
    """A second worker that makes the answer again says nothing until it is stored."""
    live = LiveAnswer(CHAT, {}, with_usage=False)
    live.note(piece(0, "a"))
    live.note(piece(0, "x", "other"))
    live.note(piece(1, "y", "other"))
    live.note(piece(1, "b"))
    assert texts(live.taken()) == ["a", "b"]


def test_a_slow_reader_fills_no_memory() -> None:
    """What is beyond the bound comes with the stored answer, once."""
    live = LiveAnswer(CHAT, {}, with_usage=False)
    text = "x" * 60_000
    for number in range(100):
        live.note(piece(number, text))
    shown = texts(live.taken())
    assert len(shown) == 5
    assert "".join(shown) + "".join(texts(live.rest(chat(text * 100)))) == text * 100


def test_pieces_are_no_larger_than_their_bound() -> None:
    """Neither made nor read."""
    assert encode_piece(piece(0, "x" * PIECE_BYTES)) is None
    raw = encode_piece(piece(0, "x"))
    assert raw is not None
    assert decode_piece(raw) == piece(0, "x")
    assert decode_piece(raw + b" " * PIECE_BYTES) is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"\xff",
        b"[1,2]",
        b'["j","d","r","0",[],null]',
        b'["j","d","r",0,[["odd","x"]],null]',
        b'["j","d","r",0,[["text",7]],null]',
    ],
)
def test_what_is_no_piece_is_none(raw: bytes) -> None:
    """Anyone who reaches Redis may write to the channel."""
    assert decode_piece(raw) is None


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, MESSAGES, RESPONSES])
@pytest.mark.parametrize(
    "delta",
    [
        Delta("extra", "no JSON"),
        Delta("extra", "[]"),
        Delta("whole", "7"),
        Delta("whole", "{}", part=9),
        Delta("extra", '{"type":"x\\n\\ndata: injected"}'),
        Delta("text", "", part=-5),
        Delta("call", "x", part=3),
    ],
)
def test_odd_deltas_break_nothing(endpoint: str, delta: Delta) -> None:
    """They are left out, or all the rest comes with the stored answer; no event is forged."""
    for head in ({}, {"id": "c", "choices": []}, {"type": "message"}, {"object": "response"}):
        live = LiveAnswer(endpoint, {}, with_usage=False)
        live.note(Piece("job", "doc", "run", 0, [delta], head))
        assert b"\n\ndata: injected" not in live.taken()
