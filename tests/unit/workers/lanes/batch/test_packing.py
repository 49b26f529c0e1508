"""Packing: ids that providers take, batches within every limit, and files that are whole or not
there."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock_ledger import ItemKey, KeptDocument, NewProviderBatch, Remainder
from penstock_producer.pins import PREFIXES
from penstock_producer.planning.prefixes import CachedPrompts, PrefixFinder, kept_groups
from penstock_producer.rows import Document
from penstock_workers.lanes.batch import window as window_module
from penstock_workers.lanes.batch.apis.provider import BadLine, BatchLimits
from penstock_workers.lanes.batch.packed import (
    LEFT_S,
    PackedDocument,
    PackedFolder,
    custom_id,
    packed_before,
)
from penstock_workers.lanes.batch.window import Terms, Window

LIMITS = BatchLimits(requests=100, total_bytes=10_000, line_bytes=1_000)


class Lines:
    """A provider, as far as packing asks it."""

    def __init__(self, limits: BatchLimits = LIMITS) -> None:
        self.limits = limits

    def line(self, custom_id: str, endpoint: str, body: bytes) -> bytes:
        if b"bad" in body:
            raise BadLine("this endpoint takes no such body")
        return custom_id.encode() + b" " + body + b"\n"


def window(folder: Path, limits: BatchLimits = LIMITS, **changes: Any) -> Window:
    terms: dict[str, Any] = {
        "job_id": "j",
        "generation": 1,
        "provider": "p",
        "kind": "openai",
        "endpoint": "/v1/x",
        "model": "m",
        "requests_max": 1_000,
        "tokens_max": None,
        "prompt_tokens_max": None,
        "prices_of": lambda model: None,
    }
    packed = PackedFolder(folder)
    packed.open()
    return Window(packed, Lines(limits), Terms(**terms | changes))  # type: ignore[arg-type]  # no calls are made


def add(
    into: Window, doc: str, body: bytes = b"{}", attempts: int = 0, endpoint: str | None = None
) -> bool:
    row = Document(doc, body, f"at-{doc}", 1, {}, endpoint)
    return into.add(row, Remainder(ItemKey("j", 1, doc), row.position, attempts, 0, 0, 0, 0, "new"))


def closed(of: Window) -> list[tuple[NewProviderBatch, list[ItemKey]]]:
    return of.close({}, {"offset": 1})


@pytest.mark.parametrize("doc", ["doc-1", "A_b-9" * 12, "x" * 64])
def test_an_id_that_providers_take_stays(doc: str) -> None:
    """Answers then name the document in a way that people know."""
    assert custom_id(doc, 64) == doc


@pytest.mark.parametrize(
    "doc", ["", "x" * 65, "a b", "naïve", "a/b", "h-like-a-digest", "line\nfeed", "\ud800"]
)
def test_any_other_id_becomes_a_digest(doc: str) -> None:
    """Within what every provider takes, the same each time, and no document's own id."""
    made = custom_id(doc, 64)
    assert re.fullmatch(r"h-[A-Za-z0-9_-]{22}", made)
    assert made == custom_id(doc, 64) != custom_id(doc + "x", 64)


@pytest.mark.parametrize(
    ("limits", "terms", "most"),
    [
        (LIMITS._replace(requests=3), {}, 3),
        (LIMITS, {"requests_max": 2}, 2),
        (LIMITS._replace(total_bytes=50), {}, 5),
        (LIMITS, {"tokens_max": 2}, 2),
    ],
)
def test_a_window_ends_at_every_limit(
    tmp_path: Path, limits: BatchLimits, terms: dict[str, Any], most: int
) -> None:
    """The provider's requests and bytes, the job's own number, and the account's tokens; nothing of
    the next is in it."""
    packing = window(tmp_path, limits, **terms)
    taken = 0
    while add(packing, f"d{taken:05}"):
        taken += 1
    assert taken == most
    ((batch, keys),) = closed(packing)
    assert (batch.requests, len(keys)) == (most, most)
    assert batch.size == (tmp_path / batch.tag / "input.jsonl").stat().st_size <= limits.total_bytes


def test_each_endpoint_has_a_batch_of_its_own(tmp_path: Path) -> None:
    """Documents that name no endpoint go to the job's."""
    packing = window(tmp_path, model=None)
    for doc, endpoint in [("a", None), ("b", "/v1/y"), ("c", None), ("d", "/v1/y")]:
        assert add(packing, doc, b'{"model":"m"}', endpoint=endpoint)
    found = {batch.endpoint: [key.doc_id for key in keys] for batch, keys in closed(packing)}
    assert found == {"/v1/x": ["a", "c"], "/v1/y": ["b", "d"]}


def test_each_model_has_a_batch_of_its_own(tmp_path: Path) -> None:
    """Between the same two cursors; a request that names none has one, too."""
    packing = window(tmp_path, model=None)
    for doc, body in [
        ("a", b'{"model":"x"}'),
        ("b", b'{"model":"y"}'),
        ("c", b"{}"),
        ("d", b'{"model":"x"}'),
    ]:
        assert add(packing, doc, body)
    found = {batch.model: [key.doc_id for key in keys] for batch, keys in closed(packing)}
    assert found == {"x": ["a", "d"], "y": ["b"], None: ["c"]}


def test_a_line_that_no_batch_takes_is_a_dead_letter(tmp_path: Path) -> None:
    """And costs no other document."""
    packing = window(tmp_path)
    assert all(
        [
            add(packing, "long", b"x" * 1_000),
            add(packing, "odd", b"bad", attempts=2),
            add(packing, "good"),
        ]
    )
    assert [(one.key.doc_id, one.reason, one.attempts) for one in packing.letters] == [
        ("long", "request_too_large", 0),
        ("odd", "bad_request", 2),
    ]
    assert [key.doc_id for _, keys in closed(packing) for key in keys] == ["good"]


def test_a_document_is_in_a_batch_once(tmp_path: Path) -> None:
    """However often the source shows it."""
    packing = window(tmp_path)
    assert all([add(packing, "a"), add(packing, "a"), add(packing, "b")])
    assert [[key.doc_id for key in keys] for _, keys in closed(packing)] == [["a", "b"]]


def test_ids_that_become_the_same_cost_one_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digests that are equal for two documents: the second is a dead letter that says so, and none
    is lost in silence."""
    monkeypatch.setattr(window_module, "custom_id", lambda doc_id, most: "h-same")
    packing = window(tmp_path)
    assert all([add(packing, "a"), add(packing, "b b"), add(packing, "a")])
    assert [(one.key.doc_id, one.reason) for one in packing.letters] == [("b b", "bad_request")]
    assert "h-same" in packing.letters[0].last_error
    assert [key.doc_id for _, keys in closed(packing) for key in keys] == ["a"]


def test_what_is_kept_of_a_batch_names_its_documents(tmp_path: Path) -> None:
    """In the order of its lines, with their places and what they have used; a batch that has too
    much of it keeps none."""
    packing = window(tmp_path)
    for doc, attempts in [("a", 0), ("b b", 2), ("h-odd", 0)]:
        add(packing, doc, attempts=attempts)
    ((batch, _),) = closed(packing)
    kept = list(packed_before(packing.kept[batch.tag], 64))
    packed = [
        one._replace(offset=0, size=0)
        for one in PackedFolder(tmp_path).batch(batch.tag).documents()
    ]
    assert kept == packed


def test_ids_of_a_large_batch_are_few_bytes(tmp_path: Path) -> None:
    """Ten thousand ids like those that people give; random ones that are long are not kept beyond
    the bound."""
    writer = PackedFolder(tmp_path).writer("a" * 32)
    for number in range(10_000):
        name = f"review-{number:07}"
        writer.add(PackedDocument(name, name, str(number * 431), 0, 0, 0, 0, 0), b"", b"")
    kept = writer.kept()
    writer.discard()
    assert kept is not None
    assert len(kept) < 12 * 10_000


def test_packed_files_give_back_what_was_put_in(tmp_path: Path) -> None:
    """Every document with its request and what it has used up, in the order of the lines."""
    packing = window(tmp_path)
    for doc, body in [("a", b'{"n":1}'), ("b b", b"{}"), ("c", b'{"text":"\xc3\xa9"}')]:
        add(packing, doc, body, attempts=len(doc))
    ((batch, _),) = closed(packing)
    packed = PackedFolder(tmp_path).batch(batch.tag)
    documents = list(packed.documents())
    assert [(one.doc_id, one.position, one.attempts) for one in documents] == [
        ("a", "at-a", 1),
        ("b b", "at-b b", 3),
        ("c", "at-c", 1),
    ]
    assert packed.bodies(documents[::-1]) == [b'{"text":"\xc3\xa9"}', b"{}", b'{"n":1}']
    assert list(packed.by_id()) == ["a", custom_id("b b", 64), "c"]


def test_a_window_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    """No folder has a batch's name before all of it is written."""
    packing = window(tmp_path)
    add(packing, "a")
    assert not any(len(folder.name) == 32 for folder in tmp_path.iterdir())
    packing.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_takes_only_old_files_of_no_batch(tmp_path: Path) -> None:
    """Files of open batches, those that another worker writes just now, and what is none of a batch
    stay."""
    import os
    import time

    names = {
        "a" * 32: True,
        "b" * 32: True,
        "c" * 32: False,
        "d" * 32 + "-7.part": True,
        "notes": True,
    }
    for name, is_old in names.items():
        (tmp_path / name).mkdir()
        if is_old:
            long_ago = time.time() - 2 * LEFT_S
            os.utime(tmp_path / name, (long_ago, long_ago))
    PackedFolder(tmp_path).sweep({"a" * 32})
    assert {folder.name for folder in tmp_path.iterdir()} == {"a" * 32, "c" * 32, "notes"}


def test_lines_have_the_marks_of_the_prompt_cache_and_kept_requests_have_none(
    tmp_path: Path,
) -> None:
    """What is sent for an hour's cache is the line's; a dead letter, or another lane, has the
    document's own request."""
    start, finder = "word " * 2_000, PrefixFinder("/v1/messages")
    bodies = [
        orjson.dumps({"model": "m", "messages": [{"role": "user", "content": f"{start}{at}"}]})
        for at in range(3)
    ]
    for body in bodies:
        finder.add(body)
    kept = {PREFIXES: kept_groups(finder.found(1_024, finder.chars / 4), "m")}
    cached = CachedPrompts.of(kept, "anthropic", "", "/v1/messages", packs=True)
    large = LIMITS._replace(total_bytes=10**6, line_bytes=10**5)
    made = window(tmp_path, large, endpoint="/v1/messages", cached=cached)
    assert add(made, "a", bodies[0])
    ((batch, _),) = made.close({}, {})
    packed = PackedFolder(tmp_path).batch(batch.tag)
    line = packed.input.read_bytes()
    assert b'"cache_control":{"type":"ephemeral","ttl":"1h"}' in line
    assert packed.bodies(list(packed.documents())) == [bodies[0]]


@pytest.mark.parametrize(
    ("used", "escalations"), [((), 0), ((1, 2, 3, 4, 5), 0), ((0, 1, 9, 9, 7, 1), 1)]
)
def test_kept_documents_say_which_of_them_went_on(used: tuple[int, ...], escalations: int) -> None:
    """Those that an earlier release kept have gone on to no better model."""
    kept = zlib.compress(KeptDocument("a", "at-a", used).to_line())
    [found] = packed_before(kept, 64)
    assert found.escalations == found.before(ItemKey("j", 1, "a")).escalations == escalations
    assert (found.calls, found.size) == (used[1] if used else 0, 0)
