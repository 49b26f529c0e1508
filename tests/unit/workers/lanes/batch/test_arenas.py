"""How many arenas glibc's malloc makes for the threads of a worker of the batch lane."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

THREADS = 12
# Each thread takes memory while all of them live; then glibc itself says how many arenas it has
# made.
PROGRAM = f"""
import ctypes, sys, tempfile, threading
from penstock_workers.lanes.batch.engine import limit_arenas

print(limit_arenas() if sys.argv[1] == "limited" else "left alone")
together = threading.Barrier({THREADS})

def take() -> None:
    held = bytes(20_000)
    together.wait(30)

threads = [threading.Thread(target=take) for _ in range({THREADS})]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
libc.fopen.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.fclose.argtypes = [ctypes.c_void_p]
with tempfile.NamedTemporaryFile() as said:
    stream = libc.fopen(said.name.encode(), b"w")
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    print(said.read().count(b"<heap nr="))
"""

on_glibc = pytest.mark.skipif(
    sys.platform != "linux" or "CS_GNU_LIBC_VERSION" not in os.confstr_names,
    reason="the C library is not glibc",
)


def _arenas(how: str, variables: Mapping[str, str] | None = None) -> tuple[str, int]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "GLIBC_"))
    }
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, how],
        env={**environment, **(variables or {})},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    said, arenas = ran.stdout.split("\n")[:2]
    return said, int(arenas)


@on_glibc
def test_threads_share_two_arenas() -> None:
    """A dozen threads that hold memory at once have two arenas together, by glibc's own account,
    and more without."""
    assert _arenas("limited") == ("True", 2)
    assert _arenas("left alone")[1] > 2


@on_glibc
def test_a_limit_of_the_environment_stands() -> None:
    """Where MALLOC_ARENA_MAX or GLIBC_TUNABLES says how many arenas there may be, that is what
    holds."""
    for variables in {"MALLOC_ARENA_MAX": "4"}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=4"}:
        assert _arenas("limited", variables) == ("False", 4)
