"""What to do, as a terminal, HTTP and a page write it; foreign words stay as they came."""

from __future__ import annotations

import copy
import json
import pickle
import sqlite3

import pytest

from penstock_cli.failures import message
from penstock_gateway.callers.caller import dead_letter_for
from penstock_gateway.errors import refused_for
from penstock_ledger import ScheduleExists
from penstock_ledger.model import DeadLetter, ItemKey, Job, JobState
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
from penstock_producer import ContentError, SourceError, SpecError
from penstock_producer.errors import Problem
from penstock_producer.job.options import OPTIONS
from penstock_producer.reporting.advice import FIXES, on_page, on_terminal, over_http

WRITTEN: list[tuple[Action, str, str, str]] = [
    (SetOption("id_field"), "--id-field", "id_field", "“Column of ids”"),
    (SetOption("timeout_s"), "--timeout", "timeout_s", "timeout_s"),
    (SetOption("encoding", "cp1252"), "--encoding cp1252", "encoding=cp1252", "“Encoding”: cp1252"),
    (SetOption("query", "SELECT 'a'"), "--query 'SELECT '\"'\"'a'\"'\"''", "query=SELECT 'a'", ""),
    (SetParam("max_tokens"), "--param max_tokens=…", "params.max_tokens", "params.max_tokens"),
    (SetParam("n", 2), "--param n=2", "params.n=2", "params.n=2"),
    (Replay(), "`penstock dlq replay`", "POST /v1/jobs/JOB/replay", "a replay"),
    (
        Replay("model"),
        "`penstock dlq replay --set model=…`",
        "POST /v1/jobs/JOB/replay with overrides.set.model",
        "a replay with another model",
    ),
    (
        SetSetting("providers.NAME.base_url"),
        "--base-url",
        "the setting providers.NAME.base_url",
        "the setting providers.NAME.base_url",
    ),
    (
        SetSetting("max_answer_bytes"),
        "the setting max_answer_bytes",
        "the setting max_answer_bytes",
        "the setting max_answer_bytes",
    ),
    (Run(Command.JOBS), "`penstock jobs`", "GET /v1/jobs", "the list of jobs"),
    (
        Run(Command.WORKER, (SetOption("lane", "a b"),)),
        "`penstock worker --lane 'a b'`",
        "workers of the operator",
        "",
    ),
]


@pytest.mark.parametrize(("action", "typed", "sent", "read"), WRITTEN)
def test_each_surface_writes_an_action_in_its_own_way(
    action: Action, typed: str, sent: str, read: str
) -> None:
    """A terminal has flags and commands, HTTP fields and requests, a page words and forms."""
    text = Text("do it by ", action, ".")
    assert on_terminal(text) == f"do it by {typed}."
    assert over_http(text) == f"do it by {sent}."
    assert on_page(text) == (f"do it by {read}." if read else on_page(text))


def test_every_option_has_its_flag_and_its_field() -> None:
    """Also those whose flag has another name."""
    for option in OPTIONS.values():
        text = Text("see ", SetOption(option.field))
        assert (on_terminal(text), over_http(text)) == (
            f"see --{option.name}",
            f"see {option.field}",
        )


def test_a_text_keeps_its_actions_where_texts_are_put_together() -> None:
    """Before, behind and inside of others, and on its way to another process."""
    name = Text("name ", SetOption("model"))
    whole = Text("a: ", name, "; ") + "then " + Text(", or ").join([name, "leave"])
    assert on_terminal(whole) == "a: name --model; then name --model, or leave"
    for same in (pickle.loads(pickle.dumps(whole)), copy.deepcopy(whole)):
        assert (same, same.parts) == (whole, whole.parts)


def test_as_a_string_it_names_fields() -> None:
    """Logs, Python, JSON and SQL get a plain sentence."""
    text = Text("raise ", SetOption("max_bad_rows"))
    assert type(str(text)) is str
    assert (str(text), json.loads(json.dumps(text))) == (text, "raise max_bad_rows")
    with sqlite3.connect(":memory:") as database:
        assert database.execute("SELECT ?", (text,)).fetchone() == ("raise max_bad_rows",)


def test_one_refusal_is_written_for_both_doors() -> None:
    """The same error has the flag in the terminal, and the field in the answer."""
    error = SpecError([Problem("missing_field", "/model", "no model", FIXES["answer_cut"])])
    assert "raise max_tokens (--param max_tokens=…)" in message(error)
    refused = refused_for(error)
    assert "raise max_tokens (params.max_tokens)" in refused.message
    assert refused.problems[0]["fix"].startswith("answers end before they are whole: raise max_")


def test_a_command_over_http_is_a_request() -> None:
    """What the command line lists has a request of its own, which the answer names."""
    error = ScheduleExists("nightly")
    assert "another --name, or remove it first: `penstock schedule remove`" in message(error)
    assert "another name, or remove it first: DELETE /v1/schedules/NAME" in over_http(
        error.public_message
    )


FOREIGN = "HTTP 400: use --max-tokens 5, see `penstock resume x --budget-usd 7` (--model)"


def test_words_of_a_provider_are_never_rewritten() -> None:
    """They may name flags and commands of its own, or ours: they are shown as they came."""
    for surface in (on_terminal, over_http, on_page):
        assert surface(FOREIGN) == FOREIGN
    job = Job(
        job_id="job_1",
        job_key="k",
        spec={},
        source={"uri": "/srv/in.jsonl"},
        digest="d",
        state=JobState.RUNNING,
        reason=None,
        generation=1,
        total=1,
        created_at=0.0,
        finished_at=None,
    )
    letter = DeadLetter(ItemKey("job_1", 1, "a"), "bad_request", 1, 1, FOREIGN, 400, b"{}", None)
    assert dead_letter_for(job, letter).last_error == FOREIGN


def test_what_a_user_typed_is_never_rewritten() -> None:
    """A column that is called like a flag, and a path that looks like a command."""
    error = SourceError(
        "missing_column", Text("no column '--model' in penstock jobs; name ", SetOption("id_field"))
    )
    assert over_http(error.public_message).startswith(
        "missing_column: no column '--model' in penstock jobs; name id_field"
    )
    plain = ContentError("x", "no column '--model'")
    assert over_http(plain.public_message) == "x: no column '--model'"
