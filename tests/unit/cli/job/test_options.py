"""Job options are spelled once: table, spec, flags, JSON Schema and page agree."""

from __future__ import annotations

import typer.main
from options_page import PAGE, page
from typer.core import TyperOption

from penstock_cli.job.given import GivenJob
from penstock_cli.job.jobspec import job_spec
from penstock_cli.main import command_line
from penstock_producer import JobSpec
from penstock_producer.job.options import OPTIONS

COMMANDS = typer.main.get_command(command_line()).commands  # type: ignore[attr-defined]  # it is a group


def test_every_field_of_the_spec_is_in_the_table_and_the_other_way_round() -> None:
    """A new field of the spec has a sentence for people, and so a flag and a line in the docs."""
    assert set(OPTIONS) == set(JobSpec.model_fields)
    assert all(option.help.endswith(".") for option in OPTIONS.values())
    assert len({option.name for option in OPTIONS.values()}) == len(OPTIONS)


def test_both_commands_have_a_flag_for_every_option() -> None:
    """`run` and `submit` take the same job, with the table's words."""
    for command in ("run", "submit"):
        flags = {parameter.name: parameter for parameter in COMMANDS[command].params}
        for option in OPTIONS.values():
            assert f"--{option.name}" in flags[option.field].opts, (command, option.field)
            assert flags[option.field].help.startswith(option.help), (command, option.field)


def test_flags_that_are_left_out_give_the_specs_own_defaults() -> None:
    """What `penstock submit` shows as a default is the default of the spec, read as if it had been
    typed."""
    typed = {
        name: parameter.default for name, parameter in _flags("submit").items() if name in OPTIONS
    }
    assert job_spec(GivenJob("d", typed)) == job_spec(GivenJob("d", {})) == JobSpec()


def test_the_json_schema_says_what_the_flags_say() -> None:
    """Tools that read the schema show the sentences of `--help`, and the defaults."""
    for field, told in JobSpec.model_json_schema()["properties"].items():
        assert told["description"] == OPTIONS[field].help
        assert told.get("default") == OPTIONS[field].default


def test_the_page_is_the_table() -> None:
    """docs/job-options.md has a row per option; `python tests/harness/options_page.py` writes it anew."""
    assert PAGE.read_text("utf-8") == page()


def _flags(command: str) -> dict[str, TyperOption]:
    return {parameter.name: parameter for parameter in COMMANDS[command].params}
