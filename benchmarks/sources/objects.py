"""A bucket that holds as many objects as one asks for, and stores none: `python -m
benchmarks.sources.objects NUMBER`.

It plays what a reader of S3 needs: lists by pages of a thousand, and objects by ranges. Prints its
port.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from email.utils import formatdate
from typing import Final
from urllib.parse import parse_qs, urlsplit

from benchmarks.harness.documents import doc_id
from benchmarks.sources.forms import PREFIX, texts

PAGE: Final = 1_000
_TIME: Final = "2026-11-22T00:00:00.000Z"
_DATE: Final = formatdate(1_795_305_600, usegmt=True)


class Objects:
    def __init__(self, number: int) -> None:
        self._number = number
        self._texts = [text.encode() for text in texts()]
        self._numbers = {doc_id(n): n for n in range(number)}

    async def serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                writer.write(self._answered(head))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _answered(self, head: str) -> bytes:
        asked = urlsplit(head.split(" ", 2)[1])
        query = {name: values[0] for name, values in parse_qs(asked.query).items()}
        if "list-type" in query:
            return _answer(
                "200 OK", "".join(self._listed(query)).encode(), "Content-Type: application/xml\r\n"
            )
        n = self._numbers.get(asked.path.rpartition("/")[2].removesuffix(".txt"))
        if n is None:
            return _answer("404 Not Found", b"", "")
        more = f'ETag: "{n}"\r\nLast-Modified: {_DATE}\r\n'
        ranged = next(
            (line for line in head.split("\r\n") if line.lower().startswith("range:")), ""
        )
        if not ranged:
            return _answer("200 OK", self._body(n), more)
        start, _, end = ranged.partition("=")[2].partition("-")
        body = self._body(n)
        part = body[int(start) : int(end) + 1]
        return _answer(
            "206 Partial Content", part, f"{more}Content-Range: bytes {start}-{end}/{len(body)}\r\n"
        )

    def _listed(self, query: dict[str, str]) -> Iterator[str]:
        after = query.get("start-after", "").removeprefix(PREFIX).removesuffix(".txt")
        first = (
            int(query["continuation-token"])
            if "continuation-token" in query
            else self._numbers.get(after, -1) + 1
        )
        last = min(first + PAGE, self._number)
        yield f"<ListBucketResult><KeyCount>{last - first}</KeyCount>"
        if last < self._number:
            yield f"<IsTruncated>true</IsTruncated><NextContinuationToken>{last}</NextContinuationToken>"
        for n in range(first, last):
            yield (
                f"<Contents><Key>{PREFIX}{doc_id(n)}.txt</Key><LastModified>{_TIME}</LastModified>"
                f"<ETag>&quot;{n}&quot;</ETag><Size>{len(self._body(n))}</Size></Contents>"
            )
        yield "</ListBucketResult>"

    def _body(self, n: int) -> bytes:
        return b"[%d] %b" % (n, self._texts[n % len(self._texts)])


def _answer(status: str, body: bytes, more: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


if __name__ == "__main__":
    asyncio.run(Objects(int(sys.argv[1])).serve())
