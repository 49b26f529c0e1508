"""The lines of OpenAI's batch files: what is asked, and what is answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import orjson

from penstock_simulate.answers.calls import CHAT, COMPLETIONS, EMBEDDINGS, Call, misshapen
from penstock_simulate.answers.dialects import openai
from penstock_simulate.answers.faults import document_of
from penstock_simulate.answers.refusals import Refusal
from penstock_simulate.answers.replies import answer_body
from penstock_simulate.batches.intake import Asked
from penstock_simulate.batches.results import Undone
from penstock_simulate.reply import Usage

ENDPOINTS = (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
)  # of those that OpenAI takes: what this simulator answers
MESSAGES = {
    Undone.TIMED_OUT: "This request could not be completed in time.",
    Undone.EXPIRED: "This request could not be executed before the completion window expired.",
    Undone.CANCELLED: "This request was not executed because the batch was cancelled.",
}


def read_line(line: dict[str, Any]) -> Asked:
    """A line whose outer fields are in order.

    A body that is not is an error of this request alone."""
    custom_id, body = line["custom_id"], line["body"]
    call = Call(line["url"], b"", None, custom_id, 1, document_of(custom_id))
    return Asked(custom_id, call, usable=misshapen(call, body) is None)


class OpenAIWording:
    """Results in two files: the answers, and everything else."""

    apart = True

    def __init__(self, added: Mapping[str, str] = {}) -> None:
        """``added``: what the provider's lines leave out."""
        self._added = added

    def asked(self, raw: bytes) -> Asked:
        return read_line({**orjson.loads(raw), **self._added})

    def answered(self, asked: Asked, request_id: str) -> tuple[bytes, Usage]:
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
        return orjson.dumps(orjson.loads(line) | {"custom_id": f"unknown-{uuid4().hex[:12]}"})


def _line(custom_id: str, status: int, request_id: str, body: bytes) -> bytes:
    response = {"status_code": status, "request_id": request_id, "body": orjson.Fragment(body)}
    return orjson.dumps(
        {"id": _id(request_id), "custom_id": custom_id, "response": response, "error": None}
    )


def _id(request_id: str) -> str:
    return "batch_" + request_id
