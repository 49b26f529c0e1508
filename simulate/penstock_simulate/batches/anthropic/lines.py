"""The requests of a message batch, and the lines of its results."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import orjson

from penstock_simulate.answers.calls import MESSAGES, Call, misshapen
from penstock_simulate.answers.dialects import anthropic
from penstock_simulate.answers.prompt_cache import PromptCache
from penstock_simulate.answers.refusals import Refusal
from penstock_simulate.answers.replies import answer_body
from penstock_simulate.batches.batch import Queue
from penstock_simulate.batches.intake import Asked, Problem, Span
from penstock_simulate.batches.results import Undone
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.reply import Usage

MAX_REQUESTS = 100_000
CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
QUEUE_FULL = "rate_limit_error"


class _Body(msgspec.Struct):
    """What a batch is created with; each request is left as the bytes that it came in."""

    requests: list[msgspec.Raw]


def split(body: Path, into: Path) -> None:
    """Put each request of a body on a line of its own.

    Raises msgspec.DecodeError for a body that is none."""
    with into.open("wb") as lines:
        for raw in msgspec.json.decode(body.read_bytes(), type=_Body).requests:
            # Between the tokens of JSON a space is as good as a line end, and within a text there
            # is none.
            lines.write(bytes(raw).replace(b"\n", b" ").replace(b"\r", b" ") + b"\n")


def read_request(given: dict[str, Any]) -> Asked:
    """A document is known by what is asked about it, as in real time where a client gives no name
    to it."""
    params, custom_id = given["params"], given["custom_id"]
    document = (
        "body-"
        + blake2b(orjson.dumps(params, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()
    )
    call = Call(MESSAGES, b"", None, document, 1, document)
    return Asked(custom_id, call, usable=misshapen(call, params) is None)


class AnthropicReader:
    """Checks what is found at once; the params of each request are found wrong by its result."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._seen: set[str] = set()

    def spans(self, source: Path) -> Iterator[Span]:
        offset = 0
        with source.open("rb") as file:
            for raw in file:
                yield Span(offset, raw)
                offset += len(raw)

    def checked(self, raw: bytes, number: int) -> Asked | None:
        given, at = orjson.loads(raw), f"requests.{number - 1}"
        fault = self._fault(given)
        if fault is not None:
            self.problems.append(Problem("invalid_request_error", f"{at}.{fault}", number))
            return None
        self._seen.add(given["custom_id"])
        return read_request(given)

    def whole(self, requests: int) -> None:
        if requests == 0:
            self.problems.append(
                Problem("invalid_request_error", "requests: List should have at least 1 item")
            )
        elif requests > MAX_REQUESTS:
            told = f"requests: List should have at most {MAX_REQUESTS} items, not {requests}"
            self.problems = [Problem("invalid_request_error", told)]

    def _fault(self, given: Any) -> str | None:
        if not isinstance(given, dict) or not isinstance(given.get("params"), dict):
            return "params: Field required"
        custom_id = given.get("custom_id")
        if not isinstance(custom_id, str) or CUSTOM_ID.fullmatch(custom_id) is None:
            return "custom_id: String should match pattern '^[a-zA-Z0-9_-]{1,64}$'"
        return (
            f"custom_id: {custom_id!r} is used more than once" if custom_id in self._seen else None
        )


class AnthropicWording:
    """One line for each request, whatever became of it.

    A batch writes its prompts to a cache once and reads them after."""

    apart = False

    def __init__(self) -> None:
        self._cache = PromptCache()

    def asked(self, raw: bytes) -> Asked:
        return read_request(orjson.loads(raw))

    def answered(self, asked: Asked, request_id: str) -> tuple[bytes, Usage]:
        call = asked.call
        call.cache = self._cache.look(call.prefixes, 0.0)
        self._cache.use(call.prefixes, 0.0)
        body, usage = answer_body(call, tier="batch")
        return _line(asked, {"type": "succeeded", "message": orjson.Fragment(body)}), usage

    def refused(self, asked: Asked, refusal: Refusal, request_id: str) -> bytes:
        _, body = anthropic(refusal, request_id)
        return _line(asked, {"type": "errored", "error": orjson.Fragment(body)})

    def undone(self, asked: Asked, why: Undone, request_id: str) -> bytes:
        match why:
            case Undone.EXPIRED:
                return _line(asked, {"type": "expired"})
            case Undone.CANCELLED:
                return _line(asked, {"type": "canceled"})
            case Undone.TIMED_OUT:
                refusal = Refusal(
                    504, "The request timed out while it was processed.", "timeout_error"
                )
                return self.refused(asked, refusal, request_id)

    def unknown(self, line: bytes, asked: Asked) -> bytes:
        return orjson.dumps(orjson.loads(line) | {"custom_id": f"unknown-{uuid4().hex[:12]}"})


def no_room(queue: Queue, config: SimulatorConfig) -> Problem | None:
    most = config.batch_enqueued_requests
    if most is None or queue.requests <= most:
        return None
    told = (
        f"This batch would exceed the limit of {most:,} batch requests in the processing queue. "
        "Try again later."
    )
    return Problem(QUEUE_FULL, told)


def _line(asked: Asked, result: dict[str, Any]) -> bytes:
    return orjson.dumps({"custom_id": asked.custom_id, "result": result})
