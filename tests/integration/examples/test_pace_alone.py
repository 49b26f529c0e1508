"""The example of pacing alone, as a reader would start it: without Redis, and on one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from servers import RedisServer

EXAMPLE = Path(__file__).parents[3] / "examples" / "pace_alone.py"


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "on Redis"])
def test_the_example_charges_what_was_used(shared: bool, request: pytest.FixtureRequest) -> None:
    """It ends by itself, and is charged what it used, not what it reserved."""
    server: list[RedisServer] = [request.getfixturevalue("redis_server")] if shared else []
    ran = subprocess.run(
        [sys.executable, EXAMPLE, *(one.url for one in server)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "13500 tokens charged of 18000 reserved" in ran.stdout
    assert "blocking: 10 calls" in ran.stdout
