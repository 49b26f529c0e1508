from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from envelopes import decode_envelope
from hypothesis import given
from hypothesis import strategies as st

from penstock_ledger.model import ItemKey
from penstock_producer.errors import BadMessage, UnknownMessageVersion, WireError
from penstock_producer.feed import wire

KEY = ItemKey("job_a", 1, "doc-1")
BODY = '{"model":"m","messages":[{"role":"user","content":"é \\u2028 \\"quoted\\""}]}'.encode()


def kwargs_of(raw: bytes) -> dict[str, Any]:
    return json.loads(json.loads(raw)["body"])[1]  # type: ignore[no-any-return]  # JSON is untyped


def test_a_message_round_trips() -> None:
    """What is encoded is what a worker reads: key, body, tag, queue and tries."""
    raw = wire.encode_item(KEY, queue="penstock.api", body=BODY, ref=None, retries=2)
    envelope = decode_envelope(raw)
    assert envelope.message.key == KEY
    assert json.loads(envelope.message.body or b"") == json.loads(BODY)
    assert (envelope.tag, envelope.queue, envelope.retries) == ("job_a:doc-1", "penstock.api", 2)


def test_large_bodies_travel_by_reference() -> None:
    """A message holds the document's position when it has no body."""
    raw = wire.encode_item(KEY, queue="q", body=None, ref="1024:99")
    assert decode_envelope(raw).message == wire.ItemMessage(KEY, None, "1024:99")


def test_urgent_messages_say_so_where_no_body_can() -> None:
    """The mark that Redis looks for is in urgent messages only, whatever a body says."""
    sly = b'{"x-penstock-urgent":true,"text":"\\"x-penstock-urgent\\":true"}'
    mark = b'"x-penstock-urgent":'
    assert mark not in wire.encode_item(KEY, queue="q", body=sly, ref=None)
    urgent = wire.encode_item(KEY, queue="q", body=sly, ref=None, urgent=True, calls=2)
    assert urgent.count(mark) == 1
    assert json.loads(urgent)["headers"][wire.URGENT_HEADER] is True


@pytest.mark.parametrize(("body", "ref"), [(None, None), (b"{}", "0:2")])
def test_a_message_has_a_body_or_a_reference(body: bytes | None, ref: str | None) -> None:
    """Neither and both are programming errors."""
    with pytest.raises(ValueError, match="either body or ref"):
        wire.encode_item(KEY, queue="q", body=body, ref=ref)


def test_one_name_for_id_correlation_and_delivery_tag() -> None:
    """Task id, correlation id and delivery tag are the item tag."""
    envelope = json.loads(wire.encode_item(KEY, queue="q", body=b"{}", ref=None))
    tag = wire.item_tag(KEY)
    assert envelope["headers"]["id"] == tag
    assert envelope["properties"]["correlation_id"] == envelope["properties"]["delivery_tag"] == tag


@pytest.mark.parametrize(
    "doc_id", ["a b", "../x", "é", "e\u0301", "x" * 129, "a:b", "a~g2", "sha256-" + "0" * 64, '"']
)
def test_unsafe_ids_become_digests(doc_id: str) -> None:
    """An id that is long or unsafe in keys and terminals is named by its digest."""
    digest = hashlib.sha256(doc_id.encode()).hexdigest()
    assert wire.item_tag(ItemKey("job_a", 1, doc_id)) == f"job_a:sha256-{digest}"
    raw = wire.encode_item(ItemKey("job_a", 1, doc_id), queue="q", body=b"{}", ref=None)
    assert decode_envelope(raw).message.key.doc_id == doc_id


def test_generations_and_unicode_twins_have_their_own_tags() -> None:
    """Replays and NFC/NFD twins never share a tag."""
    ids = ["é", "e\u0301", "a", "a~g2"]
    tags = {
        wire.item_tag(ItemKey("job_a", generation, doc)) for generation in (1, 2) for doc in ids
    }
    assert len(tags) == 8
    assert wire.item_tag(ItemKey("job_a", 2, "a")) == "job_a:a~g2"


def test_no_prompt_in_the_headers() -> None:
    """Headers reach logs and Flower, so they hold ids and never a document."""
    raw = wire.encode_item(KEY, queue="q", body=b'{"input":"SECRET"}', ref=None)
    assert "SECRET" not in json.dumps(json.loads(raw)["headers"])


def test_an_item_for_another_endpoint_has_a_version_of_its_own() -> None:
    """Workers that do not know endpoints in messages park it: it would go to the job's otherwise.

    Others are as they were."""
    raw = wire.encode_item(KEY, queue="q", body=b"{}", ref=None, endpoint="/v1/embeddings")
    assert kwargs_of(raw)["v"] == 2
    assert decode_envelope(raw).message == wire.ItemMessage(KEY, b"{}", None, "/v1/embeddings")
    assert kwargs_of(wire.encode_item(KEY, queue="q", body=BODY, ref=None))["v"] == 1


@pytest.mark.parametrize(
    "endpoint", [None, 5, "", "v1/embeddings", "//evil.example/x", "/v1/../files", "/v1/a?b"]
)
def test_a_forged_endpoint_is_refused(endpoint: Any) -> None:
    """A message that says it has one, and has none that is a plain path."""
    kwargs = kwargs_of(wire.encode_item(KEY, queue="q", body=b"{}", ref=None)) | {
        "v": 2,
        "endpoint": endpoint,
    }
    with pytest.raises(BadMessage, match="endpoint"):
        wire.decode_item(kwargs, {})


@pytest.mark.parametrize("version", [0, 3, "1", True, 1.5])
def test_unknown_versions_have_their_own_error(version: Any) -> None:
    """A message of another release raises an error of its own, so that it can be parked."""
    kwargs = kwargs_of(wire.encode_item(KEY, queue="q", body=b"{}", ref=None)) | {"v": version}
    with pytest.raises(UnknownMessageVersion, match="is kept until then"):
        wire.decode_item(kwargs, {})


@pytest.mark.parametrize(
    "damage",
    [
        {"v": None},
        {"job": ""},
        {"doc": 5},
        {"gen": 0},
        {"gen": True},
        {"body": "text"},
        {"body": None},
        {"ref": "0:1"},
    ],
)
def test_damaged_messages_are_named(damage: dict[str, Any]) -> None:
    """Anything that is not of the promised shape is a BadMessage."""
    kwargs = kwargs_of(wire.encode_item(KEY, queue="q", body=b"{}", ref=None)) | damage
    with pytest.raises(BadMessage):
        wire.decode_item(kwargs, {})


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.text(st.characters(categories=["Cs", "Cc"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
WILD = st.fixed_dictionaries(
    {
        "v": st.just(1) | JSON,
        "job": st.just("job_a") | JSON,
        "gen": st.just(1) | JSON,
        "doc": st.just("d") | JSON,
    },
    optional={"body": JSON, "ref": JSON},
)


@given(
    WILD | JSON,
    st.dictionaries(st.sampled_from(["retries", wire.CALLS_HEADER, wire.FED_HEADER]), JSON),
)
def test_whatever_a_stranger_sends_is_an_item_or_a_bad_message(
    kwargs: Any, headers: dict[str, Any]
) -> None:
    """Decoding raises wire errors and nothing else, and what it lets through fits every store
    (B5)."""
    try:
        message = wire.decode_item(kwargs, headers)
    except WireError:
        return
    job_id, generation, doc_id = message.key
    assert 0 < generation < 2**31
    assert 0 < len(doc_id.encode()) <= 512
    assert job_id.isascii()
    assert not any(ord(letter) < 32 for letter in f"{job_id}{doc_id}{message.ref}")
    assert all(headers.get(name) is None or headers[name] >= 0 for name in headers)
    assert (message.body is None) != (message.ref is None)


def nested(depth: int) -> list[Any]:
    """Lists in lists."""
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


@pytest.mark.parametrize(
    "damage",
    [
        {"gen": 2**31},
        {"gen": 0},
        {"gen": 1.0},
        {"doc": "a\0b"},
        {"doc": "x" * 9_000},
        {"doc": "\ud800"},
        {"job": "job_a\0"},
        {"job": "j" * 9_000},
        {"job": "a:b"},
        {"job": "*"},
        {"body": None, "ref": "9" * 9_000},
        {"body": {"deep": nested(100_000)}},
    ],
    ids=lambda damage: str(next(iter(damage))),
)
def test_what_no_store_takes_is_refused_at_decode(damage: dict[str, Any]) -> None:
    """Ids and numbers beyond what Penstock makes never get as far as a store, which would refuse
    them for ever (B5)."""
    kwargs = {"v": 1, "job": "job_a", "gen": 1, "doc": "d", "body": {}}
    assert wire.decode_item(kwargs, {}).key == ItemKey("job_a", 1, "d")
    with pytest.raises(BadMessage):
        wire.decode_item(kwargs | damage, {})


@pytest.mark.parametrize("name", ["retries", wire.CALLS_HEADER, wire.FED_HEADER])
@pytest.mark.parametrize("value", [2**63, -1, "3", True, 1.5])
def test_headers_beyond_their_columns_are_refused_at_decode(name: str, value: Any) -> None:
    """A header that counts tries or calls is a number of 32 bits, or the message is set aside
    (B5)."""
    kwargs = {"v": 1, "job": "job_a", "gen": 1, "doc": "d", "body": {}}
    assert wire.decode_item(kwargs, {name: None}) == wire.decode_item(kwargs, {name: 7})
    with pytest.raises(BadMessage, match=name):
        wire.decode_item(kwargs, {name: value})


def test_integers_beyond_64_bit_survive_decoding() -> None:
    """A foreign producer's large integers are kept exactly."""
    kwargs = {"v": 1, "job": "j", "gen": 1, "doc": "d", "body": {"n": 10**30}}
    assert wire.decode_item(kwargs, {}).body == b'{"n":%d}' % 10**30
