"""The lines of OpenAI's batch files: what is asked, what validation finds, and what is answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from penstock_simulate.answers.calls import CHAT, COMPLETIONS, EMBEDDINGS, Call, misshapen
from penstock_simulate.answers.faults import document_of
from penstock_simulate.answers.prompt_cache import UNCACHED_IN_BATCHES, PromptCache
from penstock_simulate.answers.refusals import Refusal, openai
from penstock_simulate.answers.replies import answer_body
from penstock_simulate.batches.batch import Queue
from penstock_simulate.batches.intake import Asked, Problem, Span, renamed
from penstock_simulate.batches.results import Undone
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.reply import Usage

# of those that OpenAI takes: what this simulator answers
ENDPOINTS = (CHAT, COMPLETIONS, EMBEDDINGS)
MESSAGES = {
    Undone.TIMED_OUT: "This request could not be completed in time.",
    Undone.EXPIRED: "This request could not be executed before the completion window expired.",
    Undone.CANCELLED: "This request was not executed because the batch was cancelled.",
}


def read_line(line: dict[str, Any]) -> Asked:
    """Return a line whose outer fields are in order.

    A body that is not is an error of this request alone."""
    custom_id, body = line["custom_id"], line["body"]
    call = Call(line["url"], b"", None, custom_id, 1, document_of(custom_id))
    return Asked(custom_id, call, usable=misshapen(call, body) is None)


class OpenAIWording:
    """Results in two files: the answers, and everything else."""

    apart = True

    def __init__(self, added: Mapping[str, str] = {}) -> None:
        """Word lines for a provider; ``added`` is what its lines leave out."""
        self._added = added
        self._cache = PromptCache()

    def asked(self, raw: bytes) -> Asked:
        return read_line({**orjson.loads(raw), **self._added})

    def answered(self, asked: Asked, request_id: str) -> tuple[bytes, Usage]:
        if UNCACHED_IN_BATCHES.match(asked.call.model) is None:
            asked.call.cache = self._cache.read_in_batch(asked.call.prefixes)
        body, usage = answer_body(asked.call)
        return _line(asked.custom_id, 200, request_id, body), usage

    def refused(self, asked: Asked, refusal: Refusal, request_id: str) -> bytes:
        status, body = openai(refusal, request_id)
        return _line(asked.custom_id, status, request_id, body)

    def undone(self, asked: Asked, why: Undone, request_id: str) -> bytes:
        error = {"code": why.value, "message": MESSAGES[why]}
        return orjson.dumps(
            {"id": _id(request_id), "custom_id": asked.custom_id, "response": None, "error": error}
        )

    def unknown(self, line: bytes, asked: Asked) -> bytes:
        return renamed(line, "custom_id")


def _line(custom_id: str, status: int, request_id: str, body: bytes) -> bytes:
    response = {"status_code": status, "request_id": request_id, "body": orjson.Fragment(body)}
    return orjson.dumps(
        {"id": _id(request_id), "custom_id": custom_id, "response": response, "error": None}
    )


def _id(request_id: str) -> str:
    return "batch_" + request_id


MAX_REQUESTS = 50_000  # lines, and with embeddings their texts too


class OpenAIReader:
    """Checks one input file against the endpoint that its batch was created for."""

    def __init__(self, endpoint: str, added: Mapping[str, str] = {}) -> None:
        """Read lines for a provider; ``added`` is what its lines leave out."""
        self.problems: list[Problem] = []
        self._endpoint, self._added = endpoint, added
        self._model: str | None = None
        self._seen: set[str] = set()
        self._texts = 0

    def spans(self, source: Path) -> Iterator[Span]:
        """Yield one line more than there may be at most: the rest of such a file is not read."""
        offset = 0
        with source.open("rb") as file:
            for number, raw in enumerate(file, 1):
                yield Span(offset, raw)
                offset += len(raw)
                if number > MAX_REQUESTS:
                    return

    def checked(self, raw: bytes, number: int) -> Asked | None:
        try:
            line = orjson.loads(raw)
        except orjson.JSONDecodeError:
            line = None
        if not isinstance(line, dict):
            self._add("invalid_json_line", "This line is not parseable as valid JSON.", number)
            return None
        line |= self._added
        problem = _shape(line) or self._fits(line)
        if problem is not None:
            self._add(*problem[:2], number, problem[2])
            return None
        asked = read_line(line)
        self._texts += len(asked.call.texts)
        return asked

    def whole(self, requests: int) -> None:
        if requests == 0:
            self.problems.append(
                Problem("empty_file", "The input file is empty: it must have at least one request.")
            )
        elif requests > MAX_REQUESTS:
            message = (
                f"The input file has more requests than the {MAX_REQUESTS} that one batch may have."
            )
            self.problems = [Problem("too_many_tasks", message)]
        elif self._endpoint == EMBEDDINGS and self._texts > MAX_REQUESTS:
            message = (
                f"The requests have {self._texts} embedding inputs together; a batch may have "
                f"{MAX_REQUESTS}."
            )
            self.problems.append(Problem("too_many_tasks", message))

    def _fits(self, line: dict[str, Any]) -> tuple[str, str, str] | None:
        """Say how a line differs from the batch or the lines before it."""
        custom_id, model = line["custom_id"], line["body"].get("model")
        if line["url"] != self._endpoint:
            told = (
                f"The url {line['url']!r} does not match the batch's endpoint {self._endpoint!r}."
            )
            return "url_mismatch", told, "url"
        if custom_id in self._seen:
            told = (
                f"The custom_id {custom_id!r} is a duplicate: it must be unique for each request "
                "in a batch."
            )
            return "duplicate_custom_id", told, "custom_id"
        self._seen.add(custom_id)
        if self._model is None:
            self._model = model
        if model != self._model:
            told = (
                f"The model {model!r} is not that of the lines before, {self._model!r}: a batch "
                "has one model."
            )
            return "model_mismatch", told, "body.model"
        return None

    def _add(self, code: str, message: str, line: int, param: str | None = None) -> None:
        self.problems.append(Problem(code, message, line, param))


def _shape(line: dict[str, Any]) -> tuple[str, str, str] | None:
    """Return what is missing in a line, or is of the wrong kind."""
    if not isinstance(line.get("custom_id"), str) or not line["custom_id"]:
        return "missing_required_parameter", "Missing required parameter: 'custom_id'.", "custom_id"
    if line.get("method") != "POST":
        return (
            "invalid_method",
            f"Invalid method {line.get('method')!r}: only 'POST' is supported.",
            "method",
        )
    if not isinstance(line.get("url"), str):
        return "missing_required_parameter", "Missing required parameter: 'url'.", "url"
    if not isinstance(line.get("body"), dict):
        return "missing_required_parameter", "Missing required parameter: 'body'.", "body"
    return None


def no_room(queue: Queue, config: SimulatorConfig) -> Problem | None:
    most = config.batch_enqueued_tokens
    if most is None or queue.tokens <= most:
        return None
    message = (
        f"Enqueued token limit reached for {queue.model} in this organization. Limit: {most:,} "
        "enqueued tokens. Please try again once some in_progress batches have been completed."
    )
    return Problem("token_limit_exceeded", message)
