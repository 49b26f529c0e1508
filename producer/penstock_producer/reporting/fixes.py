"""What a person can do where documents fail: one sentence for each reason of a dead letter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["FIXES"]

_REQUEST: Final = (
    "correct what the provider names: each dead letter has its request, and a replay can send "
    "another (dlq replay --set NAME=VALUE)"
)
_SERVER: Final = (
    "the provider fails at each of them: see how it is, then replay them (penstock dlq replay)"
)
_ENGINE: Final = "the worker's log has what the engine said"
FIXES: Final[Mapping[str, str]] = {
    "bad_request": _REQUEST,
    "unprocessable": _REQUEST,
    "context_overflow": "cut the columns that are long (--truncate), or name a model with a longer "
    "context (dlq replay --set model=…)",
    "request_too_large": (
        "cut the columns that are long (--truncate), or send less with each document"
    ),
    "content_filter": (
        "the provider's policy refuses them: reword the prompt, or name another model (--fallback)"
    ),
    "schema_mismatch": "the answers do not fit the schema: say in the prompt which JSON is wanted, "
    "ask for it (--response-format), correct the schema, or name another model",
    "prompt_too_long": "the prompt is longer than max_prompt_tokens: cut the columns that are long "
    "(--truncate), or raise --max-prompt-tokens",
    "answer_cut": (
        "answers end before they are whole: raise max_tokens (--param max_tokens=…), or ask for "
        "shorter ones"
    ),
    "empty_answer": (
        "answers have no text: raise max_tokens where the model thinks first, or name another model"
    ),
    "invalid_result": "the job's own hook refuses the answers: correct the prompt or the hook",
    "hook_failed": (
        "correct the job's hook, restart the workers, then replay them (penstock dlq replay)"
    ),
    "invalid_answer": (
        "what answers is no such API: check the provider's address (--base-url) and the endpoint"
    ),
    "answer_too_large": "ask for shorter answers, or raise the workers' setting max_answer_bytes",
    "source_lost": "put the source back as it was, then replay them (penstock dlq replay)",
    "timeout": "answers take longer than --timeout: raise it, or lower max_tokens",
    "error_in_answer": _SERVER,
    "server_error": _SERVER,
    "connection_lost": _SERVER,
    "engine_failed": _ENGINE,
    "engine_aborted": _ENGINE,
    "worker_crashed": "each of them ends the process that runs it: the worker's log says where",
}
