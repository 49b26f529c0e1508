"""The book of requests that are answered or on their way, on a real Redis."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest
from redis.exceptions import ResponseError
from servers import RedisServer

from penstock_ledger import (
    AnswerBook,
    Asked,
    InFlight,
    Keep,
    Publish,
    RedisLedger,
    RequestName,
    SettleBatch,
    SettledDone,
    keys,
)
from penstock_ledger.model import ItemKey

BOOK = keys.answers_of_job("job")
A, B = (RequestName(BOOK, letter * 43) for letter in "ab")
KEY = ItemKey("job", 1, "doc:1")


def asked(name: RequestName, oldest_s: float = 3600.0) -> Asked:
    return Asked(name, oldest_s, 3600)


@pytest.fixture
def client(redis_server: RedisServer) -> Any:
    return redis_server.client()


@pytest.fixture
def hot(client: Any) -> RedisLedger:
    ledger = RedisLedger(client, "epoch-1")
    ledger.install_epoch()
    return ledger


def settle(hot: RedisLedger, name: RequestName, key: ItemKey = KEY, keep_s: float = 3600.0) -> None:
    hot.settle(SettleBatch(done=[SettledDone(key, 1, keep=Keep(*name, keep_s))]))


def test_one_owner_sends_and_the_others_are_told_how_long_it_has_been_at_it(client: Any) -> None:
    """The first to ask has the claim and keeps it by asking again; others learn its age; released,
    the next one has it."""
    first, second = AnswerBook(client, "w1"), AnswerBook(client, "w2")
    assert first.ask([asked(A)]) == [None]
    assert first.ask([asked(A), asked(B)]) == [None, None]
    assert [type(one) for one in second.ask([asked(A), asked(B)])] == [InFlight, InFlight]
    first.ask([], [A])
    second.ask([], [B])  # is not its own
    told = second.ask([asked(A), asked(B)])
    assert told[0] is None
    assert isinstance(told[1], InFlight)


def test_a_claim_ends_with_its_lease(client: Any) -> None:
    """An owner that died asks no more, and the next one leads."""
    dead, next_one = AnswerBook(client, "w1", lease_s=0.05), AnswerBook(client, "w2", lease_s=0.05)
    dead.ask([asked(A)])
    deadline = time.monotonic() + 5
    while next_one.ask([asked(A)]) != [None]:
        assert time.monotonic() < deadline


def test_a_settled_result_answers_all_who_ask_until_it_is_too_old(
    hot: RedisLedger, client: Any
) -> None:
    """Settling puts the item in the claim's place; one who wants a younger answer leads."""
    first, second = AnswerBook(client, "w1"), AnswerBook(client, "w2")
    first.ask([asked(A), asked(B)])
    settle(hot, A)
    assert first.ask([asked(A)]) == second.ask([asked(A)]) == [KEY]
    seconds = client.time()[0]
    client.hset(BOOK, A.digest, f"a{seconds - 100}:{seconds + 100}:job:1:doc:1")
    assert second.ask([asked(A, oldest_s=200)]) == [KEY]
    assert second.ask([asked(A, oldest_s=50)]) == [None]
    client.hset(BOOK, A.digest, f"a{seconds - 100}:{seconds - 1}:job:1:doc:1")
    assert first.ask([asked(A)]) == [None]


def test_a_result_is_kept_only_where_a_claim_is(hot: RedisLedger, client: Any) -> None:
    """Where the entry has made room for others, or Redis forgot, settling adds none: the bound
    holds."""
    settle(hot, A)
    assert client.exists(BOOK) == 0
    assert AnswerBook(client, "w1").ask([asked(A)]) == [None]


def test_a_full_book_stays_full_and_claims_go_last(hot: RedisLedger, client: Any) -> None:
    """A million requests that never repeat take the room of a thousand, and calls that are on their
    way keep their claims."""
    book = AnswerBook(client, "w1", most=50)
    claim = RequestName(BOOK, "claim")
    book.ask([asked(claim)])
    for number in range(300):
        name = RequestName(BOOK, f"request-{number}")
        book.ask([asked(name)])
        settle(hot, name, ItemKey("job", 1, f"doc-{number}"))
    assert client.hlen(BOOK) == 50
    assert client.hexists(BOOK, "claim")
    assert 0 < client.ttl(BOOK) <= 3600


def test_the_room_of_what_has_ended_is_taken_first(client: Any) -> None:
    """Answers that are too old and claims of the dead leave before any that can still be used."""
    book, seconds = AnswerBook(client, "w1", most=16), client.time()[0]
    for number in range(15):
        client.hset(BOOK, f"old-{number}", f"a{seconds - 9}:{seconds - 1}:job:1:d")
    client.hset(BOOK, "young", f"a{seconds - 9}:{seconds + 99}:job:1:d")
    book.ask([asked(A)])
    assert sorted(client.hkeys(BOOK)) == [A.digest.encode(), b"young"]


@pytest.mark.parametrize(
    "value", ["", "x", "a1:2", "c9e99:1:w", "a99999999999:99999999999:job:1:d", "\x00\xff"]
)
def test_an_entry_that_makes_no_sense_is_none(client: Any, value: str) -> None:
    """What a stranger wrote, or a clock that is far ahead, lets the request be sent."""
    client.hset(BOOK, A.digest, value)
    assert AnswerBook(client, "w1").ask([asked(A)]) == [None]


def test_settling_counts_what_took_an_answer(hot: RedisLedger) -> None:
    """The job's counters say how many documents needed no call, and why."""
    for doc, reused in (("d1", "dedup"), ("d2", "dedup"), ("d3", "cache"), ("d4", None)):
        hot.publish("penstock.api", [Publish(ItemKey("job", 1, doc), "0", b"{}")], 1)
        hot.settle(
            SettleBatch(done=[SettledDone(ItemKey("job", 1, doc), 1, calls=0, reused=reused)])
        )
    stats = hot.stats("job")
    assert (stats["reused:dedup"], stats["reused:cache"], stats["succeeded"]) == (2, 1, 4)


def test_a_full_redis_lets_requests_be_sent_and_results_be_settled(
    client: Any, hot: RedisLedger
) -> None:
    """Where Redis refuses memory the book says so, which the worker takes for "send it"; settling
    goes on."""
    AnswerBook(client, "w1").ask([asked(A)])
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(ResponseError, match="maxmemory"):
            AnswerBook(client, "w1").ask([asked(B)])
        settle(hot, A)
        assert AnswerBook(client, "w1").ask([asked(A)]) == [KEY]
    finally:
        client.config_set("maxmemory", 0)


def test_answers_come_in_the_order_of_the_questions(hot: RedisLedger, client: Any) -> None:
    """Requests of several jobs travel in one call, and each gets its own answer."""
    book = AnswerBook(client, "w1")
    other = keys.answers_of_job("other")
    names = [RequestName(BOOK if n % 2 else other, f"digest-{n}") for n in range(10)]
    book.ask([asked(name) for name in names])
    for n in (3, 4, 7):
        settle(hot, names[n], ItemKey("job", 1, f"doc-{n}"))
    told = book.ask([asked(name) for name in names])
    assert [None if one is None else cast(ItemKey, one).doc_id for one in told] == [
        f"doc-{n}" if n in (3, 4, 7) else None for n in range(10)
    ]


def test_five_hundred_new_requests_at_once_keep_to_the_bound(client: Any) -> None:
    """A whole group of requests that no one has made makes room for itself in one call."""
    book = AnswerBook(client, "w1", most=600)
    for part in range(4):
        book.ask([asked(RequestName(BOOK, f"{part}-{n}")) for n in range(500)])
        assert client.hlen(BOOK) <= 600
