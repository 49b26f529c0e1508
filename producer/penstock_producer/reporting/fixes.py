"""What a person can do where documents fail: one text for each reason of a dead letter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock_ledger.texts import Replay, SetOption, SetParam, SetSetting, Text

__all__ = ["FIXES"]

_REQUEST: Final = Text(
    "correct what the provider names: each dead letter has its request, and ",
    Replay(),
    " can send another",
)
_SERVER: Final = Text(
    "the provider fails at each of them: see how it is, then send them again by ", Replay()
)
_ENGINE: Final = "the worker's log has what the engine said"
_CUT: Final = Text("cut the columns that are long (", SetOption("truncate"), ")")
FIXES: Final[Mapping[str, str]] = {
    "bad_request": _REQUEST,
    "unprocessable": _REQUEST,
    "context_overflow": Text(
        _CUT, ", or name a model with a longer context (", Replay("model"), ")"
    ),
    "request_too_large": Text(_CUT, ", or send less with each document"),
    "content_filter": Text(
        "the provider's policy refuses them: reword the prompt, or name another model (",
        SetOption("fallback"),
        ")",
    ),
    "schema_mismatch": Text(
        "the answers do not fit the schema: say in the prompt which JSON is wanted, ask for it (",
        SetOption("response_format"),
        "), correct the schema, or name another model",
    ),
    "prompt_too_long": Text(
        "the prompt is longer than max_prompt_tokens: ",
        _CUT,
        ", or raise ",
        SetOption("max_prompt_tokens"),
    ),
    "answer_cut": Text(
        "answers end before they are whole: raise max_tokens (",
        SetParam("max_tokens"),
        "), or ask for shorter ones",
    ),
    "empty_answer": (
        "answers have no text: raise max_tokens where the model thinks first, or name another model"
    ),
    "invalid_result": "the job's own hook refuses the answers: correct the prompt or the hook",
    "hook_failed": Text(
        "correct the job's hook, restart the workers, then send them again by ", Replay()
    ),
    "invalid_answer": Text(
        "what answers is no such API: check the provider's address (",
        SetSetting("providers.NAME.base_url"),
        ") and the endpoint",
    ),
    "answer_too_large": "ask for shorter answers, or raise the workers' setting max_answer_bytes",
    "source_lost": Text("put the source back as it was, then send them again by ", Replay()),
    "timeout": Text(
        "answers take longer than ", SetOption("timeout_s"), ": raise it, or lower max_tokens"
    ),
    "error_in_answer": _SERVER,
    "server_error": _SERVER,
    "connection_lost": _SERVER,
    "engine_failed": _ENGINE,
    "engine_aborted": _ENGINE,
    "worker_crashed": "each of them ends the process that runs it: the worker's log says where",
}
