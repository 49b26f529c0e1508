"""Where the completed set keeps a document, and how the ledger's small pure parts behave."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_ledger import (
    ItemKey,
    Job,
    JobState,
    SettleBatch,
    SettledDead,
    SettledDone,
    SettledRetry,
    bucket_count,
    buckets_for,
)
from penstock_ledger.in_redis.redis_scripts import settle_chunks
from penstock_ledger.keys import MAX_FIELD_BYTES, done_bucket, done_field
from penstock_ledger.stored_values import storable
from penstock_ledger.stores.outcome_insert import array_literal

JOB = Job("j", "j", {}, {"kind": "file"}, "d", JobState.RUNNING, None, 1, 1_000, 0.0, None)
KEY = ItemKey("j", 1, "d")


@pytest.mark.parametrize(
    ("total", "buckets"), [(0, 1), (1, 1), (160, 1), (161, 2), (1_000_000, 6_250), (None, 12_500)]
)
def test_buckets_hold_few_enough_documents_to_stay_compact(total: int | None, buckets: int) -> None:
    """The number of buckets follows the total, is never 0, and is fixed where the total is
    unknown."""
    assert bucket_count(total) == buckets


def test_closing_an_open_job_does_not_move_its_documents() -> None:
    """A job that got its total late keeps the buckets that its first documents were put into."""
    opened = replace(JOB, source={"kind": "spool"}, total=None)
    assert buckets_for(opened) == buckets_for(replace(opened, total=5)) == bucket_count(None)
    assert buckets_for(JOB) == bucket_count(1_000)


@given(st.text(min_size=1, max_size=200))
def test_fields_are_short_and_buckets_in_range(doc_id: str) -> None:
    """Whatever the id, its field is at most 64 bytes and its bucket exists."""
    field = done_field(doc_id.encode("utf-8", "replace").decode())
    assert len(field) <= MAX_FIELD_BYTES
    assert 0 <= done_bucket(field, 7) < 7


def test_long_ids_become_digests() -> None:
    """The last id that is kept as it is has 64 bytes."""
    assert done_field("x" * 64) == b"x" * 64
    assert done_field("x" * 65) == hashlib.sha256(b"x" * 65).digest()


@given(st.lists(st.one_of(st.none(), st.text())))
def test_text_arrays_are_quoted(values: list[str | None]) -> None:
    """Every element is NULL or one quoted string: as many unescaped quotes as there must be."""
    literal = array_literal("Text", values)
    unescaped = literal.replace("\\\\", "").replace('\\"', "")
    assert unescaped.count('"') == 2 * sum(value is not None for value in values)


def test_other_arrays_are_literal() -> None:
    """Numbers and bytes as PostgreSQL reads them."""
    assert array_literal("BigInteger", [1, None, -3]) == "{1,NULL,-3}"
    assert array_literal("Double", [1e20, 0.1]) == "{1e+20,0.1}"
    assert array_literal("LargeBinary", [b"", b"\x00\xff"]) == '{"\\\\x","\\\\x00ff"}'


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        (None, None),
        ("", ""),
        ("plain", "plain"),
        ("a\0b", "a\ufffdb"),
        ("é", "é"),
        ("\ud800", "\ufffd"),
    ],
)
def test_text_is_made_storable(text: str | None, stored: str | None) -> None:
    """Only what a database or UTF-8 refuses is replaced."""
    assert storable(text) == stored


@given(*[st.integers(0, 25)] * 4, st.integers(1, 12))
def test_settlements_are_cut_without_loss(
    done: int, dead: int, retries: int, released: int, size: int
) -> None:
    """Every item is in exactly one part, in order, and no part is larger than allowed or empty."""
    batch = SettleBatch(
        done=[SettledDone(KEY, n) for n in range(done)],
        dead=[SettledDead(KEY, n, "x") for n in range(dead)],
        retries=[SettledRetry(KEY, n, "q", "t", b"", 0.0) for n in range(retries)],
        released=[ItemKey("j", n, "d") for n in range(released)],
    )
    parts = list(settle_chunks(batch, size))
    sizes = [
        len(part.done) + len(part.dead) + len(part.retries) + len(part.released) for part in parts
    ]
    assert all(0 < number <= size for number in sizes)
    assert [one for part in parts for one in part.done] == list(batch.done)
    assert [one for part in parts for one in part.dead] == list(batch.dead)
    assert [one for part in parts for one in part.retries] == list(batch.retries)
    assert [one for part in parts for one in part.released] == list(batch.released)
