"""Text for a terminal: tables and the ends of logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock_producer.reporting.text import safe

MAX_ALIGNED = 40  # columns
LOG_TAIL_BYTES = 8192  # enough for the traceback at the end of a log


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as lines, every cell whole: what is copied from a narrow terminal or a pipe must not
    be cut.

    A cell longer than MAX_ALIGNED pushes the rest of its row to the right instead of widening its
    column for all.
    """
    from rich.cells import cell_len

    widths = [
        max(
            (
                cell_len(row[index])
                for row in (header, *rows)
                if cell_len(row[index]) <= MAX_ALIGNED
            ),
            default=0,
        )
        for index in range(len(header))
    ]
    return [
        "  ".join(
            cell + " " * max(0, width - cell_len(cell))
            for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in (header, *rows)
    ]


def last_lines(path: Path, lines: int = 12) -> str:
    """The end of a log, escaped; empty when there is no log."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(safe(line) for line in text.splitlines()[-lines:])
