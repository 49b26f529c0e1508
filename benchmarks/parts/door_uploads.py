"""(o) A large file through the door: CPU up and down, and the door's peak of memory beside that
after a file of 1 MiB.

200 MB in 50,000 lines, as OpenAI takes them. One door for all rounds: its peak cannot fall, so the
small file comes first.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.documents import doc_id
from benchmarks.harness.door import door
from benchmarks.harness.ground import GroundError, folder, redis_server, usage
from benchmarks.harness.report import Report, Row, median
from penstock_ledger import open_database

LINES, LINE_BYTES, ROUNDS = 50_000, 4_000, 3
QUICK_LINES, QUICK_ROUNDS = 5_000, 1
SMALL_LINES = 262  # 1 MiB
PIECE = 1 << 20
TIMEOUT_S = 300.0
BOUNDARY = "penstock-benchmark"


class Moved(NamedTuple):
    up_s: float  # of the door's CPU
    down_s: float
    peak_mib: float


def run(quick: bool) -> Report:
    lines, rounds = (QUICK_LINES, QUICK_ROUNDS) if quick else (LINES, ROUNDS)
    with folder() as place, redis_server(place) as server:
        database_url = f"sqlite:///{place / 'ledger.db'}"
        database = open_database(database_url)
        database.migrate()
        database.close()
        small, large = (
            written(place / "small.jsonl", SMALL_LINES),
            written(place / "large.jsonl", lines),
        )
        with door(place, database_url, server.url) as (port, pid):
            first = moved(port, pid, small)
            found = [moved(port, pid, large) for _ in range(rounds)]
        mib = large.stat().st_size / 2**20
    return Report(
        f"(o) a file of {mib:.0f} MiB, {lines:,} lines, through the door, {rounds} round(s)",
        [*_rows(first, found, mib)],
    )


def written(path: Path, lines: int) -> Path:
    """A batch file of so many lines of LINE_BYTES each."""
    with path.open("w") as file:
        for number in range(lines):
            head = {"custom_id": doc_id(number), "method": "POST", "url": "/v1/chat/completions"}
            messages = [{"role": "user", "content": "x" * (LINE_BYTES - 200)}]
            file.write(
                json.dumps(head | {"body": {"model": "sim-small", "messages": messages}}) + "\n"
            )
    return path


def moved(port: int, pid: int, path: Path) -> Moved:
    """``path`` is uploaded and its content read back; the door's CPU of each."""
    start = usage(pid).cpu_s
    name = upload(port, path)
    between = usage(pid).cpu_s
    _download(port, name, path.stat().st_size)
    end = usage(pid)
    return Moved(between - start, end.cpu_s - between, end.peak_bytes / 2**20)


def upload(port: int, path: Path) -> str:
    """The id of the file; it is sent in pieces, so that the client's memory is flat, too."""
    head, tail = _form(path.name)
    length = len(head) + path.stat().st_size + len(tail)
    headers = {
        "content-type": f"multipart/form-data; boundary={BOUNDARY}",
        "content-length": str(length),
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", "/v1/files", _pieces(head, path, tail), headers)
        answer = connection.getresponse()
        said = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise GroundError(f"the upload of {path.name} was answered {answer.status}: {said[:200]!r}")
    return str(json.loads(said)["id"])


def _form(filename: str) -> tuple[bytes, bytes]:
    purpose = f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    file = (
        f"--{BOUNDARY}\r\n"
        f'content-disposition: form-data; name="file"; filename="{filename}"\r\n'
        "\r\n"
    )
    return (purpose + file).encode(), f"\r\n--{BOUNDARY}--\r\n".encode()


def _pieces(head: bytes, path: Path, tail: bytes) -> Iterator[bytes]:
    yield head
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece
    yield tail


def _download(port: int, name: str, size: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", f"/v1/files/{name}/content")
        answer = connection.getresponse()
        got = 0
        while piece := answer.read(PIECE):
            got += len(piece)
    finally:
        connection.close()
    if answer.status != 200 or got != size:
        raise GroundError(
            f"the content of {name} was answered {answer.status} with {got} bytes of {size}"
        )


def _rows(first: Moved, found: list[Moved], mib: float) -> Iterator[Row]:
    for name, seconds in (
        ("upload", [one.up_s for one in found]),
        ("download", [one.down_s for one in found]),
    ):
        spent = median(seconds)
        yield Row(f"{name}: CPU of the door", f"{spent:.2f} s", f"{spent * 1e3 / mib:.1f} ms a MiB")
    peak = found[-1].peak_mib
    yield Row(
        "peak memory of the door",
        f"{peak:.0f} MiB",
        f"{first.peak_mib:.0f} MiB after 1 MiB",
        f"{peak / first.peak_mib:.2f}x",
    )
