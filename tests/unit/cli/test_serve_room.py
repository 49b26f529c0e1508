"""The disk of `penstock serve`: what it says at its start, and what it takes while there is little
left."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock_cli.disk import ENOUGH_BYTES, LOW_BYTES
from penstock_cli.errors import UsageProblem
from penstock_cli.run.serve import COPIES, KEPT_FREE, room_line
from penstock_gateway.files.store import FREE_BYTES_MIN
from penstock_gateway.middleware import ACCEPT_BYTES, Room
from penstock_gateway.refused import Refused
from penstock_gateway.settings import GatewaySettings

UPLOAD = 200 * 1024 * 1024
STATE = Path("serving")


def test_the_start_says_what_is_free_and_what_is_needed() -> None:
    """Enough, and less than the largest upload takes."""
    needed = COPIES * UPLOAD + KEPT_FREE
    line = room_line(STATE, UPLOAD, lambda _: needed)
    assert line == (
        "the disk of serving has 763.4 MB left; the largest upload (209.7 MB) takes about 763.4 MB "
        "until its batch is done"
    )
    short = room_line(STATE, UPLOAD, lambda _: needed - 1)
    assert short is not None
    assert short.endswith(": smaller ones only, until there is more room")
    assert room_line(STATE, UPLOAD, lambda _: None) is None


def test_a_disk_that_is_nearly_full_is_refused_at_the_start() -> None:
    """With what is left, the limit and the fix."""
    with pytest.raises(
        UsageProblem, match=r"--state serving: its disk has 67.1 MB left, .* on another disk"
    ):
        room_line(STATE, UPLOAD, lambda _: ENOUGH_BYTES - 1)


def test_uploads_accepting_and_jobs_stop_in_this_order() -> None:
    """So that what was accepted has the last of the room."""
    assert FREE_BYTES_MIN > ACCEPT_BYTES > LOW_BYTES
    assert KEPT_FREE == FREE_BYTES_MIN


@pytest.mark.parametrize(
    ("method", "path", "free", "taken"),
    [
        ("POST", "/v1/jobs", ACCEPT_BYTES - 1, False),
        ("POST", "/v1/batches", ACCEPT_BYTES - 1, False),
        ("POST", "/v1/chat/completions", ACCEPT_BYTES - 1, False),
        ("POST", "/v1/jobs", ACCEPT_BYTES, True),
        ("POST", "/v1/jobs", None, True),
        ("POST", "/v1/jobs/j/cancel", 0, True),
        ("POST", "/v1/batches/b/cancel", 0, True),
        ("POST", "/v1/jobs/j/seal", 0, True),
        ("GET", "/v1/jobs", 0, True),
        ("DELETE", "/v1/files/f", 0, True),
        ("POST", "/ui/jobs/j/pause", 0, True),
    ],
)
def test_a_full_disk_takes_nothing_new(
    method: str, path: str, free: int | None, taken: bool
) -> None:
    """507 for what would be accepted; looking, removing and ending go on."""
    passed = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["path"])

    room = Room(app, GatewaySettings(database_url="sqlite:///serving/penstock.db"), lambda _: free)
    scope = {"type": "http", "method": method, "path": path}
    if taken:
        asyncio.run(room(scope, None, None))  # type: ignore[arg-type]  # neither is used
        assert passed == [path]
        return
    with pytest.raises(Refused, match="what was accepted is kept") as refused:
        asyncio.run(room(scope, None, None))  # type: ignore[arg-type]  # neither is used
    assert (refused.value.status, refused.value.code, passed) == (507, "insufficient_storage", [])


def test_the_ledger_of_a_fleet_is_on_no_disk_of_this_machine() -> None:
    """PostgreSQL says itself when it is full."""
    passed = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["path"])

    room = Room(app, GatewaySettings(database_url="postgresql://db/penstock"), lambda _: 0)
    asyncio.run(room({"type": "http", "method": "POST", "path": "/v1/jobs"}, None, None))  # type: ignore[arg-type]
    assert passed == ["/v1/jobs"]
