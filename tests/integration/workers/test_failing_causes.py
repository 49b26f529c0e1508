"""Why calls fail, from a worker's call to what all commands read in Redis: real servers."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from redis_sets import write_certificates
from servers import RedisServer

from penstock_ledger import Cause, CauseBook
from penstock_ledger.in_redis.seen import FIELDS_MAX, GAP_S, KEEP_S
from penstock_workers.item.answer import NoAnswer
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.lanes.api.api_lane import ApiLane
from penstock_workers.settings import ProviderSettings

CAUSE = Cause("openai", "job", "timeout", "no answer", 3, 1000.0, 1010.0)


def test_processes_add_up_what_they_saw(redis_server: RedisServer) -> None:
    """Counts of several workers are summed, the newest words stay, and "since" is the first of them
    (A9)."""
    book = CauseBook(redis_server.client())
    book.note([CAUSE, replace(CAUSE, job_id="other", name="server_error", last=990.0)])
    book.note([replace(CAUSE, text="nul \0 and \ud800", count=2, since=1020.0, last=1030.0)])
    merged = replace(
        CAUSE,
        text="nul \N{REPLACEMENT CHARACTER} and \N{REPLACEMENT CHARACTER}",
        count=5,
        last=1030.0,
    )
    assert book.of("openai", "job") == [merged]
    assert [cause.job_id for cause in book.of("openai")] == ["job", "other"]
    assert book.of("another") == []


def test_a_trouble_that_was_over_begins_anew(redis_server: RedisServer) -> None:
    """After minutes without such a failure the count and "since" are those of the new trouble
    (A9)."""
    book = CauseBook(redis_server.client())
    book.note([CAUSE])
    later = replace(CAUSE, count=1, since=CAUSE.last + GAP_S + 1, last=CAUSE.last + GAP_S + 1)
    book.note([later])
    assert book.of("openai") == [later]


def test_causes_are_bounded_and_expire(redis_server: RedisServer) -> None:
    """The oldest give way, and an hour after the last failure nothing is left (A9)."""
    client = redis_server.client()
    book = CauseBook(client)
    book.note(replace(CAUSE, job_id=f"job{n}", last=2000.0 + n) for n in range(FIELDS_MAX + 50))
    kept = book.of("openai")
    assert len(kept) == FIELDS_MAX
    assert kept[0].job_id == f"job{FIELDS_MAX + 49}"
    assert 0 < client.ttl("penstock:failing:openai") <= KEEP_S


def test_a_certificate_that_is_not_trusted_is_named_with_its_fix(tmp_path: Path) -> None:
    """A self-signed server is not just "cannot connect": the words name the certificate and what to
    do (A9)."""
    write_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")

    async def call() -> object:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        lane = ApiLane({"default": ProviderSettings(base_url=f"https://127.0.0.1:{port}/v1")})
        await lane.start()
        try:
            return await lane.infer(
                Prepared(Request("tag", "default", "/v1/chat/completions", b"{}", 10.0))
            )
        finally:
            await lane.close()
            server.close()

    tried = asyncio.run(call())
    assert isinstance(tried, NoAnswer)
    assert (tried.failure, tried.sent) == ("connect_failed", False)
    for words in ("certificate verify failed", "SSL_CERT_FILE", "127.0.0.1"):
        assert words in tried.detail


@pytest.mark.parametrize("stored", [b"", b"{}", b"[1]", b'["a", 1, 2, "x"]', b"\xff"])
def test_what_cannot_be_read_is_left_out(redis_server: RedisServer, stored: bytes) -> None:
    """An entry of another release, or one that cannot be read, neither breaks a reader nor the next
    writer (A9)."""
    client = redis_server.client()
    client.hset("penstock:failing:openai", "job|timeout", stored)
    book = CauseBook(client)
    assert book.of("openai") == []
    book.note([CAUSE])
    assert book.of("openai") == [CAUSE]
