"""Help in boxes: the usual options of a command first, all of them with `--help-all`."""

from __future__ import annotations

import re
from typing import Any

import commands_page
import pytest
import typer.main
from typer.testing import CliRunner

from penstock_cli.command_help import ALL, BOXES, USUAL, box_of
from penstock_cli.main import command_line

FLEET_ALONE = ("priority", "weight", "tenant", "feeders", "provider")
GROUP: Any = typer.main.get_command(command_line())
COMMANDS = {
    name: GROUP.commands["schedule"].commands[name] if name == "add" else GROUP.commands[name]
    for name in USUAL
}


def flags(command: Any) -> set[str]:
    return {
        max(one.opts, key=len).removeprefix("--")
        for one in command.params
        if one.opts[0].startswith("-") and not one.hidden
    } - {ALL}


def shown(name: str, asked: str) -> list[str]:
    words = ["schedule", "add"] if name == "add" else [name]
    answer = CliRunner(env={"COLUMNS": "140"}).invoke(command_line(), [*words, asked])
    assert answer.exit_code == 0
    return re.findall(r"│ +--([a-z-]+)", answer.output)


@pytest.mark.parametrize("name", USUAL)
def test_help_has_ten_options_and_help_all_has_all(name: str) -> None:
    """What most jobs take stands first, in its order, and no option is lost."""
    usual = USUAL[name].split()
    assert len(usual) <= 10
    assert shown(name, "--help") == [*usual, ALL, "help"]
    assert shown(name, "-h") == [*usual, ALL, "help"]
    everything = shown(name, f"--{ALL}")
    assert everything[: len(usual)] == usual
    assert sorted(everything) == sorted({*flags(COMMANDS[name]), ALL, "help"})


@pytest.mark.parametrize("name", USUAL)
def test_every_option_has_its_box(name: str) -> None:
    """A new flag is put where people look for it: into one box of the table."""
    assert [flag for flag in flags(COMMANDS[name]) if box_of(flag) is None] == []


def test_no_option_has_two_boxes() -> None:
    """One place for a thing."""
    every = " ".join(BOXES.values()).split()
    assert sorted(set(every)) == sorted(every)


def test_one_machine_is_not_asked_about_a_fleet() -> None:
    """What only a fleet divides is not in the short help of `run`."""
    assert not set(FLEET_ALONE) & set(USUAL["run"].split())


def test_a_flag_beside_help_all_needs_no_source() -> None:
    """`--help-all` answers wherever it stands, and reads nothing."""
    answer = CliRunner().invoke(command_line(), ["run", "--model", "m", f"--{ALL}"])
    assert (answer.exit_code, "Shares of a fleet" in answer.output) == (0, True)


def test_the_page_has_every_command_and_setting() -> None:
    """docs/commands.md is what the code says; `python tests/harness/commands_page.py` writes it anew."""
    assert commands_page.PAGE.read_text("utf-8") == commands_page.page()
