"""What no door on FastAPI can be cheaper than: `GET /N` is answered with N bytes, by a route that
does nothing else.

    python -m benchmarks.harness.floor

It runs under uvicorn as the door does, so what the door costs more is what it does for a request.
"""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI, Response

app = FastAPI()


@app.get("/{size}")
async def answer(size: int) -> Response:
    """So many bytes."""
    return Response(b" " * size, media_type="application/json")


def main() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            app, http="httptools", ws="none", log_level="warning", access_log=False
        )
        print(f"serving http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    main()
