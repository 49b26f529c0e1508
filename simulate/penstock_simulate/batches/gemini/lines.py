"""The requests of a Gemini batch, and the lines of its results."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson

from penstock_simulate.answers.calls import GENERATE, Call, misshapen
from penstock_simulate.answers.dialects import gemini
from penstock_simulate.answers.faults import document_of
from penstock_simulate.answers.refusals import Refusal
from penstock_simulate.answers.replies import answer_body
from penstock_simulate.batches.batch import Queue
from penstock_simulate.batches.intake import Asked, Problem, Span
from penstock_simulate.batches.results import Undone
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.reply import Usage

QUEUE_FULL = "RESOURCE_EXHAUSTED"
CANCELLED, INTERNAL = 1, 13  # of google.rpc.Code
RPC_CODES = {
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "UNAVAILABLE": 14,
}


def read_request(given: dict[str, Any], model: str) -> Asked:
    """A document is known by its key or, where it has none, by what is asked about it."""
    key, body = given.get("key"), given["request"]
    if isinstance(key, str) and key:
        document = document_of(key)
    else:
        document = (
            "body-"
            + blake2b(orjson.dumps(body, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()
        )
    call = Call(GENERATE, b"", None, document, 1, document, model=model)
    echo: dict[str, Any] = {name: given[name] for name in ("key", "metadata") if name in given}
    return Asked(document, call, misshapen(call, body) is None, echo)


class GeminiReader:
    """A line that is no request fails the batch; a request that cannot be used fails alone."""

    def __init__(self, model: str) -> None:
        self.problems: list[Problem] = []
        self._model = model

    def spans(self, source: Path) -> Iterator[Span]:
        offset = 0
        with source.open("rb") as file:
            for raw in file:
                yield Span(offset, raw)
                offset += len(raw)

    def checked(self, raw: bytes, number: int) -> Asked | None:
        try:
            given = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            self.problems.append(
                Problem("INVALID_ARGUMENT", f"Line {number} is not valid JSON: {error}", number)
            )
            return None
        if not isinstance(given, dict) or not isinstance(given.get("request"), dict):
            self.problems.append(
                Problem("INVALID_ARGUMENT", f"Line {number} has no 'request'.", number)
            )
            return None
        return read_request(given, self._model)

    def whole(self, requests: int) -> None:
        if requests == 0:
            self.problems.append(Problem("INVALID_ARGUMENT", "The batch has no requests."))


class GeminiWording:
    """One line for each request.

    Those of inline requests repeat their metadata, which those of a file have not."""

    apart = False

    def __init__(self, model: str) -> None:
        self._model = model

    def asked(self, raw: bytes) -> Asked:
        return read_request(orjson.loads(raw), self._model)

    def answered(self, asked: Asked, request_id: str) -> tuple[bytes, Usage]:
        body, usage = answer_body(asked.call)
        return orjson.dumps({**asked.echo, "response": orjson.Fragment(body)}), usage

    def refused(self, asked: Asked, refusal: Refusal, request_id: str) -> bytes:
        error = orjson.loads(gemini(refusal, request_id)[1])["error"]
        return _failed(asked, RPC_CODES.get(error["status"], INTERNAL), error["message"])

    def undone(self, asked: Asked, why: Undone, request_id: str) -> bytes:
        if why is Undone.TIMED_OUT:
            return _failed(
                asked,
                RPC_CODES["DEADLINE_EXCEEDED"],
                "The deadline expired before the request was done.",
            )
        return _failed(asked, CANCELLED, "The request was cancelled.")

    def unknown(self, line: bytes, asked: Asked) -> bytes:
        return orjson.dumps(orjson.loads(line) | {"key": f"unknown-{uuid4().hex[:12]}"})


def no_room(queue: Queue, config: SimulatorConfig) -> Problem | None:
    most = config.batch_enqueued_tokens
    if most is None or queue.tokens <= most:
        return None
    told = (
        f"You exceeded your current quota: {queue.model} may have {most:,} enqueued tokens in "
        "batches."
    )
    return Problem(QUEUE_FULL, told)


def _failed(asked: Asked, code: int, message: str) -> bytes:
    return orjson.dumps({**asked.echo, "error": {"code": code, "message": message}})
