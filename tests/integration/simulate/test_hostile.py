"""The hostile provider over real sockets: what leaves is as bad as was asked for, and the simulator
lives on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from penstock_simulate import SimulatorConfig, hostile
from penstock_simulate.hostile import KINDS
from penstock_simulate.web import GRACE_S, running

BODY = json.dumps(
    {"model": "sim-small", "messages": [{"role": "user", "content": "Read the file."}]}
).encode()
LARGE = {"large", "large-chunked", "gzip-bomb", "gzip-twice"}
LONG = {"hang", "drip"}


async def post(session: aiohttp.ClientSession, url: str, **options: Any) -> tuple[int, bytes]:
    async with session.post(
        f"{url}/v1/chat/completions", data=BODY, timeout=aiohttp.ClientTimeout(total=20), **options
    ) as response:
        return response.status, await response.read()


def config(**more: Any) -> SimulatorConfig:
    return SimulatorConfig(latency_ms=0, hostile_share=1, **more)


async def test_every_small_kind_leaves_and_the_next_call_is_served() -> None:
    """Whatever a client makes of it, the accounts are in order afterwards: each call once, none in
    flight."""
    small = [name for name in KINDS if name not in LARGE | LONG]
    async with running(config(hostile="nul")) as url, aiohttp.ClientSession() as session:
        for name in small:
            await session.post(f"{url}/control", data=json.dumps({"hostile": name}))
            with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                await post(session, url, allow_redirects=False)
        async with session.get(f"{url}/stats") as answer:
            stats = await answer.json()
    assert stats["by_status"] == dict.fromkeys(sorted(small), 1)
    assert (stats["in_flight"], stats["trapped"]) == (0, {})


@pytest.mark.parametrize("name", ["large", "large-chunked", "gzip-bomb"])
async def test_a_large_answer_is_as_large_as_it_says(name: str) -> None:
    """100 MB arrive; a client that has had enough may leave before the end, which costs the
    simulator nothing."""
    async with running(config(hostile=name)) as url, aiohttp.ClientSession() as session:
        async with session.post(f"{url}/v1/chat/completions", data=BODY) as response:
            assert (response.content_length == hostile.LARGE_BYTES) == (name == "large")
            if name == "gzip-bomb":
                assert len(await response.read()) == hostile.LARGE_BYTES
        async with session.get(f"{url}/health") as answer:
            assert answer.status == 200


@pytest.mark.parametrize("name", sorted(LONG))
async def test_what_takes_for_ever_does_not_hold_up_the_end(name: str) -> None:
    """A client's timeout ends its call, and the simulator's end waits for no dripping or hanging
    call."""
    async with running(config(hostile=name)) as url, aiohttp.ClientSession() as session:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(post(session, url), 0.3)
        left = asyncio.create_task(post(session, url))
        async with asyncio.timeout(10):
            while (await (await session.get(f"{url}/stats")).json())["requests"] < 2:
                pass
        ending = time.monotonic()
    assert time.monotonic() - ending < GRACE_S
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)


async def test_a_client_that_follows_a_redirect_is_counted() -> None:
    """The trap says whether a key came along: to the same host it does, with clients that
    follow."""
    async with running(config(hostile="redirect-307")) as url, aiohttp.ClientSession() as session:
        assert await post(session, url, headers={"Authorization": "Bearer key"}) == (200, b"{}")
        async with session.get(f"{url}/stats") as answer:
            assert (await answer.json())["trapped"] == {"with a key": 1}


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("good", None),
        ("expired", "expired"),
        ("other-host", "not valid for '127.0.0.1'"),
        ("self-signed", "self-signed"),
    ],
)
async def test_a_certificate_is_wrong_in_one_way_only(
    tmp_path: Path, kind: str, told: str | None
) -> None:
    """A client that trusts the authority accepts the good one, and reports the one thing that is
    wrong with another."""
    authority = tmp_path / "authority.pem"
    for _ in range(2):  # the second time the file is there
        async with (
            running(config(certificate=kind, authority=authority)) as url,
            aiohttp.ClientSession() as session,
        ):
            trusting = (
                ssl.create_default_context(cafile=str(authority)) if authority.exists() else True
            )
            if told is None:
                assert (await post(session, url, ssl=trusting))[0] == 200
            else:
                with pytest.raises(aiohttp.ClientConnectorCertificateError, match=told):
                    await post(session, url, ssl=trusting)
