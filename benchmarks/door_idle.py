"""`python -m benchmarks.door_idle 10000 [MAX]`: how fast a door with that many idle connections
answers, and at what memory."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

LOOKS = 50
START_S = 90.0


def main(count: int, most: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
        probe.close()
        given = {
            "DATABASE_URL": f"sqlite:///{folder}/ledger.db",
            "REDIS_URL": "redis://127.0.0.1:1/0",
            "GATEWAY__MAX_CONNECTIONS": str(most),
            "GATEWAY__HEADER_TIMEOUT_S": "120",
        }
        surroundings = os.environ | {f"PENSTOCK_{name}": value for name, value in given.items()}
        command = [sys.executable, "-m", "penstock_cli", "gateway", "--port", str(port)]
        door = subprocess.Popen(command, env=surroundings, cwd=folder, stderr=subprocess.DEVNULL)
        try:
            _measure(door.pid, port, count, most)
        finally:
            door.terminate()
            door.wait()


def _measure(pid: int, port: int, count: int, most: int) -> None:
    _wait(port)
    before, memory = sorted(_look_ms(port) for _ in range(LOOKS)), _memory_mib(pid)
    connections = list[socket.socket]()
    for number in range(count):
        connections.append(socket.create_connection(("127.0.0.1", port)))
        connections[-1].sendall(b"GET / HT" if number % 2 else b"")
    time.sleep(1)
    after, then = sorted(_look_ms(port) for _ in range(LOOKS)), _memory_mib(pid)
    for name, looks, mib in (
        ("alone", before, memory),
        (f"with {count} idle connections, {most} allowed", after, then),
    ):
        print(
            f"{name}: median {looks[LOOKS // 2]:.1f} ms, slowest {looks[-1]:.1f} ms, {mib:.0f} MiB"
        )


def _wait(port: int) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            _look_ms(port)
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _look_ms(port: int) -> float:
    began = time.perf_counter()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=30) as answer:
        assert answer.status == 200
    return (time.perf_counter() - began) * 1000


def _memory_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2_000)
