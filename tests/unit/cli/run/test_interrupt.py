"""Ctrl-C at any moment of a command's life."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STRIKE = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background of a shell
class Strike:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Strike())
sys.argv = ["penstock", "run", "docs.jsonl", "--out", "out", "--no-progress"]
from penstock_cli.entry import main
main()
"""


@pytest.mark.parametrize(
    "module",
    ["typer", "penstock_cli.commands", "penstock_cli.run.local", "penstock_workers.settings"],
)
def test_ctrl_c_while_a_command_starts(tmp_path: Path, module: str) -> None:
    """Ctrl-C in the first second, whatever is being imported then, is one line and status 130
    (D36)."""
    ended = subprocess.run(
        [sys.executable, "-c", STRIKE.format(module=module)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 130, ended.stderr
    told = (ended.stdout + ended.stderr).strip().splitlines()
    assert "interrupted" in told[-1]
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.splitlines()) <= 1
