"""docs/simulate.md says what the simulator does."""

from __future__ import annotations

import re
from pathlib import Path

from penstock_simulate.hostile import KINDS

PAGE = (Path(__file__).parents[3] / "docs" / "simulate.md").read_text("utf-8")


def test_the_page_lists_every_hostile_kind() -> None:
    """The table on the page is the table in the code, word for word."""
    listed = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (.+) \|$", PAGE, re.MULTILINE))
    assert listed == {kind.name: kind.line for kind in KINDS.values()}
