"""The table of ratios in docs/figures.md, from the targets that `make bench CHECK=1` holds.

To write it anew: python tests/harness/figures_page.py"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from benchmarks.harness.targets import MEASURED, OF_ENGINES, TARGETS, Target

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "figures.md"
TABLE: Final = re.compile(r"(<!-- ratios: .*? -->\n).*(<!-- end of ratios -->)", re.DOTALL)
HEAD: Final = (
    "| ratio | goal | measured | held to | when, where | again |\n|---|---|---|---|---|---|\n"
)


def text() -> str:
    rows = "".join(row(name, target) for name, target in TARGETS.items())
    return TABLE.sub(
        lambda found: f"{found[1]}{HEAD}{rows}{found[2]}", PAGE.read_text("utf-8"), count=1
    )


def row(name: str, target: Target) -> str:
    if target.measured is None:
        measured, held = "not on a quiet machine", "nothing yet"
    else:
        measured, held = f"{target.measured:g}x", str(target.held)
        if not target.wanted.met(target.measured):
            measured = f"**{measured}**"
    cells = (
        name,
        str(target.wanted),
        f"[{measured}]({link(target.argued)})",
        held,
        MEASURED[target.argued],
        "`make bench-vllm`"
        if target.benchmark == OF_ENGINES
        else f"`python -m benchmarks {target.benchmark}`",
    )
    return "| " + " | ".join(cells) + " |\n"


def link(argued: str) -> str:
    """Where a figure is argued, seen from docs/."""
    path, _, beginning = argued.partition(", ")
    place = path.removeprefix("docs/") if path.startswith("docs/") else f"../{path}"
    if not beginning:
        return place
    start = re.escape(beginning.strip("'"))
    found = re.search(rf"^#+ ({start}.*)$", (ROOT / path).read_text("utf-8"), re.MULTILINE)
    assert found is not None, argued
    slug = re.sub(r"[^\w -]", "", found[1]).lower().replace(" ", "-")
    return f"{place}#{slug}"


if __name__ == "__main__":
    PAGE.write_text(text(), "utf-8")
