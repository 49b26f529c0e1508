"""Servers of open models answer with OpenAI's API, and refuse in forms of their own.

Each row follows the server's source at the commit that stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import orjson

from penstock_simulate.answers.refusals import ABORTED, Refusal


class Said(NamedTuple):
    """A server's answer where OpenAI would give another; ``message`` may name tokens."""

    status: int
    message: str
    type: str = ""


Form = Callable[[int, str, str], object]
"""Makes the body of a refusal of a status, a message and a type."""


@dataclass(frozen=True, slots=True)
class Server:
    """The dialect of one server."""

    form: Form
    words: Mapping[str, Said]  # by the code of a refusal; else of those with its status
    streamed: Form | None = None  # a refusal within a stream, where its 200 has left already
    top: Mapping[str, Any] = field(default_factory=dict)  # fields of a good answer
    choice: Mapping[str, Any] = field(default_factory=dict)  # and of its choice
    gauges: tuple[str | None, str] | None = None  # of requests that run, and of those that wait
    gauges_as_json: bool = False

    def refuse(self, refusal: Refusal, _: str) -> tuple[int, bytes]:
        """Write a refusal; it is a Dialect."""
        said = self._said(refusal)
        if refusal.code == ABORTED:
            return said.status, orjson.dumps(_aborted(said.message))
        return said.status, orjson.dumps(self.form(*said))

    def refuse_in_stream(self, refusal: Refusal) -> bytes | None:
        """Write a refusal as the events of a stream; None where it is refused before one."""
        if self.streamed is None or refusal.code == ABORTED:
            return None
        return b"data: %b\n\ndata: [DONE]\n\n" % orjson.dumps(self.streamed(*self._said(refusal)))

    def answered(self, body: bytes) -> bytes:
        """Write a good answer of OpenAI's chat or completions as this server does."""
        answer = orjson.loads(body)
        answer["choices"] = [choice | self.choice for choice in answer["choices"]]
        return orjson.dumps(answer | self.top)

    def metrics(self, running: int, waiting: int) -> str | None:
        """Write the page of its gauges; None where it has none."""
        if self.gauges is None:
            return None
        told = zip(self.gauges, (running, waiting), strict=True)
        rows = {name: value for name, value in told if name is not None}
        if self.gauges_as_json:
            return orjson.dumps([rows]).decode()
        return "".join(
            f'# TYPE {name} gauge\n{name}{{model_name="m"}} {float(value)}\n'
            for name, value in rows.items()
        )

    def _said(self, refusal: Refusal) -> Said:
        known = (refusal.code or "", _OTHERS.get(refusal.status, ""))
        said = next((self.words[key] for key in known if key in self.words), None)
        if said is None:
            return Said(refusal.status, refusal.message, refusal.type)
        names = {"used": refusal.tokens, "limit": max(1, refusal.tokens - 1)}
        return said._replace(message=said.message.format_map(names))


def _of_openai(status: int, message: str, kind: str) -> object:
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _flat(status: int, message: str, kind: str) -> dict[str, object]:
    """Return an error as SGLang and TensorRT-LLM write it, as vLLM once did."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": status}


def _of_tgi(status: int, message: str, kind: str) -> object:
    return {"error": message, "error_type": kind}


def _of_tensorrt(status: int, message: str, kind: str) -> object:
    """Return null where its executor died: the handler returns nothing, and the server ends."""
    if status == HTTPStatus.OK:
        return None
    return _flat(status, message, kind) if kind else {"error": message}


def _aborted(reason: str) -> object:
    """Return the beginning of an answer that the server gave up."""
    message = {"role": "assistant", "content": "The category is"}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
    }


TOO_LONG: Final = "context_length_exceeded"
FULL: Final = "server_is_overloaded"
UNKNOWN_MODEL: Final = "model_not_found"
BROKEN: Final = "any other 500"
INVALID: Final = "any other 400"
_OTHERS: Final = {500: BROKEN, 400: INVALID}

SERVERS: Final[Mapping[str, Server]] = {
    # ollama/ollama fb307609: openai/openai.go, middleware/openai.go, server/sched.go,
    # llm/llama_server.go
    "ollama": Server(
        _of_openai,
        {
            TOO_LONG: Said(
                400,
                "the prompt is longer than the context length currently available to the model; "
                "shorten the prompt, adjust the context length in settings, or use a model with a "
                "longer context length",
                "invalid_request_error",
            ),
            FULL: Said(
                503,
                "server busy, please try again.  maximum pending requests exceeded",
                "api_error",
            ),
            UNKNOWN_MODEL: Said(404, "model 'sim-small' not found", "not_found_error"),
            BROKEN: Said(500, "llama-server process has terminated: exit status 2", "api_error"),
        },
        top={"system_fingerprint": "fp_ollama"},
    ),
    # sgl-project/sglang c5695a4b:srt/entrypoints/openai/serving_base.py; its managers for
    # the tokenizer and the queue, of 2026-09
    "sglang": Server(
        _flat,
        {
            TOO_LONG: Said(
                400,
                "The input ({used} tokens) is longer than the model's context length ({limit} "
                "tokens).",
                "BadRequestError",
            ),
            FULL: Said(503, "The request queue is full.", "abort"),
            BROKEN: Said(500, "Internal server error: ", "InternalServerError"),
            INVALID: Said(400, "Messages cannot be empty.", "BadRequestError"),
            ABORTED: Said(200, "abort"),
        },
        streamed=lambda *said: {"error": _flat(*said)},
        choice={"matched_stop": None},
        gauges=("sglang:num_running_reqs", "sglang:num_queue_reqs"),
    ),
    # huggingface/text-generation-inference db931fcf: router/src/server.rs, validation.rs,
    # infer/mod.rs
    "tgi": Server(
        _of_tgi,
        {
            TOO_LONG: Said(
                422,
                "Input validation error: `inputs` tokens + `max_new_tokens` must be <= {limit}. "
                "Given: {used} `inputs` tokens and 1 `max_new_tokens`",
                "validation",
            ),
            FULL: Said(429, "Model is overloaded", "overloaded"),
            BROKEN: Said(424, "Request failed during generation: Server error: ", "generation"),
            INVALID: Said(422, "Input validation error: `inputs` cannot be empty", "validation"),
        },
        streamed=lambda _, message, __: {"error": {"message": message, "http_status_code": 422}},
        top={"system_fingerprint": "3.3.7-native"},
        gauges=("tgi_batch_current_size", "tgi_queue_size"),
    ),
    # NVIDIA/TensorRT-LLM 00057725:tensorrt_llm/serve/openai_server.py, :llmapi/llm.py
    "tensorrt-llm": Server(
        _of_tensorrt,
        {
            TOO_LONG: Said(
                400,
                "The sum of prompt length ({used}.0), query length (0) should not exceed "
                "max_num_tokens ({limit})",
                "BadRequestError",
            ),
            BROKEN: Said(200, ""),
            INVALID: Said(400, "1 validation error: Extra inputs are not permitted"),
            ABORTED: Said(200, "cancelled"),
        },
        choice={"stop_reason": None, "disaggregated_params": None},
        gauges=("numActiveRequests", "numQueuedRequests"),
        gauges_as_json=True,
    ),
    # triton-inference-server/server e1db8a60:python/openai, vllm_backend 8de0c148:src/model.py,
    # core 73aad7c3:src/scheduler_utils.cc
    "triton": Server(
        lambda _, message, __: {"detail": message},
        {
            TOO_LONG: Said(
                500,
                "Error generating stream: The decoder prompt (length {used}) is longer than the "
                "maximum model length of {limit}.",
            ),
            FULL: Said(500, "[request id: <id_unknown>] Exceeds maximum queue size"),
            UNKNOWN_MODEL: Said(400, "Unknown model: sim-small"),
            BROKEN: Said(500, "Error generating stream: EngineCore encountered an issue."),
        },
        # its chats say `stop` of answers that were cut, too; usage is there with some backends only
        top={"usage": None, "system_fingerprint": None},
        choice={"finish_reason": "stop"},
        gauges=(None, "nv_inference_pending_request_count"),
    ),
}
"""By the name that `--like` gives."""
