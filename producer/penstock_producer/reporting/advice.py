"""Advice is written as each surface needs it; documents fail at a place, by the reason.

A terminal has flags and commands, HTTP fields and requests, a page words and its own forms. Here is
the one table of each. Whatever is no action stays as it came: it may be of a user, a provider or a
model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock_ledger.texts import (
    Action,
    Command,
    Replay,
    Run,
    SetOption,
    SetParam,
    SetSetting,
    Text,
)
from penstock_producer.job.options import OPTIONS
from penstock_producer.reporting.text import argument

__all__ = [
    "FIXES",
    "Advice",
    "as_field",
    "as_flag",
    "command_line",
    "on_page",
    "on_terminal",
    "over_http",
]


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do.

    ``action`` is what a reader, or a form, can do at once; None where words are all there is.
    """

    text: str
    action: SetOption | None = None


# What serves for a command where there is none: a request, and words for a page.
_ELSEWHERE: Final[Mapping[Command, tuple[str, str]]] = {
    Command.CONTROL: ("a control process of the operator", "a control process"),
    Command.DEAD_LETTERS: ("GET /v1/jobs/JOB/dead-letters", "the list of dead letters"),
    Command.DOCTOR: ("the operator's own check", "the operator's own check"),
    Command.JOBS: ("GET /v1/jobs", "the list of jobs"),
    Command.LIFT: ("the operator's release of the hold", "the operator's release of the hold"),
    Command.MAKE_KEY: ("POST /v1/keys", "a key made by the operator"),
    Command.MIGRATE: ("an upgrade by the operator", "an upgrade by the operator"),
    Command.REPORT: ("GET /v1/jobs/JOB/report", "the report"),
    Command.RESULTS: ("GET /v1/jobs/JOB/results", "the results"),
    Command.RESUME: ("POST /v1/jobs/JOB/resume", "resume"),
    Command.SCHEDULES: ("GET /v1/schedules", "the list of schedules"),
    Command.SERVE: ("another start of this server by the operator", "another start of this server"),
    Command.STATUS: ("GET /v1/jobs/JOB", "the page of the job"),
    Command.UNSCHEDULE: ("DELETE /v1/schedules/NAME", "remove"),
    Command.WORKER: ("workers of the operator", "workers of another lane"),
}
# Settings of a provider that texts name and that `penstock run` takes as flags.
_TYPED_SETTINGS: Final = ("base_url", "usd_per_mtok_in", "usd_per_mtok_out")


def on_terminal(text: str) -> str:
    """Return a text with flags and commands."""
    return _written(text, _TERMINAL)


def over_http(text: str) -> str:
    """Return a text with the fields of requests, and requests in the place of commands."""
    return _written(text, _HTTP)


def on_page(text: str) -> str:
    """Return a text in words: a page has forms for what it can do."""
    return _written(text, _PAGE)


def as_flag(action: SetOption) -> str:
    """Return the option as it is typed behind the command that makes a job."""
    name = OPTIONS[action.field].name if action.field in OPTIONS else action.field.replace("_", "-")
    flag = f"--{name}"
    if action.value is None:
        return flag
    if isinstance(action.value, float):  # a sum as a person would type it
        return f"{flag} {f'{action.value:.10f}'.rstrip('0').rstrip('.')}"
    return f"{flag} {argument(str(action.value))}"


def as_field(action: SetOption) -> dict[str, Any]:
    """Return the action as the body of a request that changes the job."""
    return {action.field: action.value}


def command_line(run: Run) -> str:
    """Return a command as it is typed."""
    typed = (as_flag(one) if isinstance(one, SetOption) else argument(one) for one in run.arguments)
    return " ".join(("penstock", run.command, *typed))


def _param_flag(one: SetParam) -> str:
    given = f"{one.name}=…" if one.value is None else argument(f"{one.name}={one.value}")
    return f"--param {given}"


def _replay_command(one: Replay) -> str:
    return f"`penstock dlq replay{f' --set {one.name}=…' if one.name else ''}`"


def _replay_request(one: Replay) -> str:
    changes = f" with overrides.set.{one.name}" if one.name else ""
    return f"POST /v1/jobs/JOB/replay{changes}"


def _setting_flag(one: SetSetting) -> str:
    last = one.name.rpartition(".")[2]
    if last not in _TYPED_SETTINGS:
        return str(one)
    named = "" if ".NAME." in one.name else f" ({one.name})"  # workers elsewhere read the setting
    return f"--{last.replace('_', '-')}{named}"


# What a surface does not write in a way of its own has its name: ``str`` of the action.
_Table = Mapping[type, Callable[[Any], str]]
_TERMINAL: Final[_Table] = {
    SetOption: as_flag,
    SetParam: _param_flag,
    Replay: _replay_command,
    SetSetting: _setting_flag,
    Run: lambda one: f"`{command_line(one)}`",
}
_HTTP: Final[_Table] = {
    Replay: _replay_request,
    Run: lambda one: _ELSEWHERE[one.command][0],
}
# What stands above the fields of the form for a new job.
_FORM: Final[Mapping[str, str]] = {
    "dedup": "Equal requests",
    "degrade": "Degrade",
    "encoding": "Encoding",
    "escalate": "Escalate",
    "id_field": "Column of ids",
    "lane": "Lane",
    "max_bad_rows": "Rows that may be unusable",
    "prompt_cache": "Provider's cache",
    "routes": "Routes",
    "tier": "Service tier",
}


def _form_field(one: SetOption) -> str:
    label = _FORM.get(one.field)
    if label is None:
        return str(one)
    return f"“{label}”" if one.value is None else f"“{label}”: {one.value}"


_PAGE: Final[_Table] = {SetOption: _form_field, Run: lambda one: _ELSEWHERE[one.command][1]}


def _written(text: str, table: _Table) -> str:
    if not isinstance(text, Text):
        return text

    def part(one: str | Action) -> str:
        return one if isinstance(one, str) else table.get(type(one), str)(one)

    return "".join(map(part, text.parts))


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
