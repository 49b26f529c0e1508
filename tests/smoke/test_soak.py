"""`make soak` itself: two minutes of the hour."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.whole
TESTS = Path(__file__).parents[1]


def test_two_minutes_of_it(tmp_path: Path) -> None:
    """It starts, breaks, audits and ends, with nothing left behind; what grows, only an hour
    shows."""
    places = os.pathsep.join((str(TESTS), str(TESTS / "harness")))
    done = subprocess.run(
        [sys.executable, "-m", "soak", "--minutes", "2", "--seed", "1"],
        env=os.environ | {"PYTHONPATH": places, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every promise held" in done.stdout
    assert list(tmp_path.glob("soak-*")) == []
