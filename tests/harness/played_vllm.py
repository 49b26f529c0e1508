"""A server that plays vLLM's with one model: it lists it, answers for it, and refuses every other
one, as vLLM does."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

LISTED_CONTEXT = 4096


class PlayedVllm:
    """Counts the documents that each of its models has answered, and those that it has refused."""

    def __init__(self, model: str, *adapters: str) -> None:
        self.model = model
        self.adapters = adapters
        self.delay_s = 0.0  # of each answer
        self.loads = False
        # characters of a request that it takes; longer ones are too long for its model
        self.longest: int | None = None
        self.answered: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._lock = threading.Lock()
        played = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if played.loads:
                    self._say(503, {})
                elif self.path == "/v1/models":
                    self._say(200, {"data": played.listed()})
                else:  # /metrics: vLLM's gauges, of an idle server
                    self._say(
                        200, {}, b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
                    )

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = played.answer(body)
                self._say(status, answer)

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def _say(self, status: int, answer: object, text: bytes | None = None) -> None:
                text = json.dumps(answer).encode() if text is None else text
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def listed(self) -> list[dict[str, Any]]:
        own: list[dict[str, Any]] = [
            {"id": self.model, "max_model_len": LISTED_CONTEXT, "parent": None}
        ]
        return own + [{"id": name, "parent": self.model} for name in self.adapters]

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        model = body.get("model", "")
        time.sleep(self.delay_s)
        with self._lock:
            if model not in (self.model, *self.adapters):
                self.refused[model] += 1
                return 404, {
                    "error": {"message": f"The model `{model}` does not exist.", "code": 404}
                }
            if self.longest is not None and len(json.dumps(body)) > self.longest:
                words = (
                    "This model's maximum context length is 64 tokens. Please reduce the length of "
                    "the input messages."
                )
                return 400, {"error": {"message": words, "type": "BadRequestError", "code": 400}}
            self.answered[model] += 1
        message = {"role": "assistant", "content": f"{self.model} answers"}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        return 200, {
            "id": "x",
            "object": "chat.completion",
            "model": model,
            "usage": usage,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
