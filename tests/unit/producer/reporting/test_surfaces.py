"""Advice on pages and in HTTP answers: fields in the place of flags, and no other word changed."""

from __future__ import annotations

import re

import pytest

from penstock_ledger import (
    JobNotFound,
    NothingToReplay,
    PenstockError,
    ScheduleExists,
    ScheduleNotFound,
)
from penstock_producer import ContentError
from penstock_producer.job.options import OPTIONS
from penstock_producer.reporting.fixes import FIXES
from penstock_producer.reporting.surfaces import on_page, over_http


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        ("raise max_bad_rows (--max-bad-rows) to go on", "raise max_bad_rows to go on"),
        ("name one (--model)", "name one (model)"),
        ("give it, such as --param max_tokens=1024", "give it, such as params.max_tokens=1024"),
        (
            "name the id column (--id-field); columns here: id",
            "name the id column (id_field); columns here: id",
        ),
        (
            "answers take longer than --timeout: raise it",
            "answers take longer than timeout_s: raise it",
        ),
        (
            "check the address (--base-url)",
            "check the address (the setting providers.NAME.base_url)",
        ),
        ("there is no column '--model' here", "there is no column '--model' here"),
        ("convert it: iconv --from-code UTF-16", "convert it: iconv --from-code UTF-16"),
    ],
)
def test_a_flag_is_said_as_the_field_that_it_sets(typed: str, sent: str) -> None:
    """Once where both stand there, never inside of quoted text, and no flag of another program."""
    assert over_http(typed) == sent


@pytest.mark.parametrize(
    "error",
    [
        JobNotFound("j"),
        NothingToReplay("j", None),
        ScheduleNotFound("nightly"),
        ScheduleExists("nightly"),
        ContentError(
            "running", "its outcomes can be read once it has ended (penstock status --watch)"
        ),
        ContentError(
            "empty_source",
            "no outcome of job j satisfies 'status=dead'; penstock report counts what it has",
        ),
    ],
)
def test_no_command_is_advised_to_those_who_have_none(error: PenstockError) -> None:
    """What lists and shows things on the command line has a request of its own here, which the
    caller has just made."""
    assert re.search(r"penstock |--[a-z]|[:;(]$", over_http(error.public_message)) is None


def test_no_fix_of_a_reason_speaks_of_the_command_line() -> None:
    """The dashboard has these sentences beside dead letters."""
    told = [over_http(fix) for fix in FIXES.values()]
    assert [text for text in told if re.search(r"--[a-z]|penstock |dlq", text)] == []


def test_every_option_has_its_field() -> None:
    """Also those whose flag has another name."""
    for option in OPTIONS.values():
        assert over_http(f"see --{option.name}.") == f"see {option.field}."


def test_a_page_names_no_field_of_a_replays_request() -> None:
    """It has a form for that."""
    assert not [fix for fix in FIXES.values() if "overrides." in on_page(fix)]
    assert any("overrides." in over_http(fix) for fix in FIXES.values())
