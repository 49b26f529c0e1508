"""The HTTP door in a process of its own, as the benchmarks start it."""

from __future__ import annotations

import http.client
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.ground import ROOT, GroundError, process, tests_on_path

START_S = 60.0
SERVE = [sys.executable, "-m", "penstock_cli", "gateway"]  # as users start it


@contextmanager
def door(
    place: Path,
    database_url: str,
    redis_url: str,
    config: Path | None = None,
    checkout: Path = ROOT,
) -> Iterator[tuple[int, int]]:
    """Its port and its process id; ``config`` is the penstock.toml of the fleet behind it,
    ``checkout`` whose code it runs."""
    with tests_on_path():
        from servers import free_port
    port = free_port()
    variables = {
        "PENSTOCK_REDIS_URL": redis_url,
        "PENSTOCK_DATABASE_URL": database_url,
        "PENSTOCK_GATEWAY__PORT": str(port),
        "PENSTOCK_GATEWAY__FILES": str(place / "files"),
    }
    if config is not None:
        variables["PENSTOCK_CONFIG"] = str(config)
    log = place / "door.log"
    with process(SERVE, variables=variables, log=log, checkout=checkout) as running:
        deadline = time.monotonic() + START_S
        while not _listens(port):
            if time.monotonic() > deadline:
                raise GroundError(f"the door did not start: {log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield port, running.pid


def _listens(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/livez")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
