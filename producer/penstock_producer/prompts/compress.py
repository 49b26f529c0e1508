"""Whitespace that costs tokens and says nothing, taken out of a prompt.

Runs of blanks within a line become one blank, blanks at its end go, and several blank lines become
one. What may mean something stays: the indentation of lines (lists, code, YAML), fenced code as it
is, and the blanks of every line with a double quote, because a string of JSON, which lies on one
line always, may hold them.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["compressed"]

_RUNS: Final = re.compile(r"[ \t\u00a0]{2,}|[\t\u00a0]")
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_BLANKS: Final = " \t\r\u00a0"


def compressed(text: str) -> str:
    lines: list[str] = []
    fence = ""  # the marks that opened the code; empty outside
    for line in text.split("\n"):
        marks = _fence(line)
        if fence:
            lines.append(line)
            if marks.startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        elif marks:
            fence = marks
            lines.append(line)
        else:
            plain = _line(line)
            if plain or (lines and lines[-1]):
                lines.append(plain)
    while lines and not lines[-1] and not fence:
        lines.pop()
    return "\n".join(lines)


def _fence(line: str) -> str:
    """The marks that this line begins or ends code with; empty for any other."""
    if "```" not in line and "~~~" not in line:
        return ""
    found = _FENCE.match(line)
    return "" if found is None else found[1]


def _line(line: str) -> str:
    plain = line.rstrip(_BLANKS)
    if '"' in plain or _RUNS.search(plain) is None:
        return plain
    text = plain.lstrip(_BLANKS)
    return plain[: len(plain) - len(text)] + _RUNS.sub(" ", text)
