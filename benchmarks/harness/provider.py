"""A provider that costs next to nothing, with each answer after so many milliseconds.

    python -m benchmarks.harness.provider [LATENCY_MS]

`penstock simulate` costs about as much per request as the client that is measured, on the same two
cores. This one reads a request's length, waits, and writes one answer; what is measured beside it
has the machine nearly to itself.
"""

from __future__ import annotations

import asyncio
import re
import sys

ANSWER = (
    b'{"id":"chatcmpl-0","object":"chat.completion","created":1790000000,"model":"sim-small","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"A fox jumps over a dog near the bank of a river."},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":120,"completion_tokens":12,"total_tokens":132}}'
)
RESPONSE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\nx-request-id: "
    b"req_0\r\n"
    b"Date: Sun, 22 Nov 2026 00:00:00 GMT\r\nServer: benchmark\r\n\r\n%b"
) % (len(ANSWER), ANSWER)
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Provider(asyncio.Protocol):
    """One connection, one request at a time, as HTTP/1.1 clients with keep-alive send them."""

    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s
        self._loop = asyncio.get_running_loop()
        self._got = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._got += data
        end = self._got.find(b"\r\n\r\n")
        length = LENGTH.search(self._got, 0, end) if end >= 0 else None
        if length is None or len(self._got) < end + 4 + int(length[1]):
            return
        self._got.clear()
        self._loop.call_later(self._latency_s, self._answer)

    def _answer(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(RESPONSE)


async def serve(latency_ms: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Provider(latency_ms / 1000), "127.0.0.1", 0, backlog=1024
    )
    print(f"serving http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0))
