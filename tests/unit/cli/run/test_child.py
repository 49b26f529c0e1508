"""What a run says to a program that called it."""

from __future__ import annotations

import re

from penstock_cli.errors import UsageProblem
from penstock_cli.run.child import SameCall, as_arguments, in_arguments
from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import SourceError
from penstock_producer.job.options import OPTIONS
from penstock_producer.reporting.advice import FIXES, on_terminal


def test_flags_are_keyword_arguments() -> None:
    """Each option of a job and of `penstock run` goes by its keyword; what is quoted stays."""
    for option in OPTIONS.values():
        assert as_arguments(f"see --{option.name}.") == f"see {option.field}."
    assert as_arguments("give --base-url, or --job NAME") == "give base_url, or job NAME"
    assert as_arguments("--param max_tokens=5 in 'a --b c'") == "params.max_tokens=5 in 'a --b c'"
    told = [as_arguments(on_terminal(fix)) for fix in FIXES.values()]
    assert [text for text in told if re.search(r"--[a-z]", text.replace("--set", ""))] == []


def test_a_call_is_repeated_as_a_call() -> None:
    """What is to change is an argument; another folder is never asked for."""
    again = SameCall()
    assert again.changed(budget_usd="2", out="x") == "the same call with budget_usd=2"
    assert again.option(SetOption("stop_at_dead", "off")) == "stop_at_dead='off'"
    assert "penstock run" not in again.unchanged() + again.later()


def test_errors_are_in_the_words_of_a_call() -> None:
    """Those of the command line have flags as text, all others name fields by themselves."""
    assert in_arguments(UsageProblem("give --model")) == "give model"
    text = Text("raise it (", SetOption("max_bad_rows"), ")")
    assert "raise it (max_bad_rows)" in in_arguments(SourceError("too_many", text))
