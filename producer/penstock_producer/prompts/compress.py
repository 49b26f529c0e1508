"""Whitespace that costs tokens and says nothing, taken out of a prompt.

Runs of blanks within a line become one blank, blanks at its end go, and several blank lines become one. What may mean
something stays: the indentation of lines (lists, code, YAML), fenced code as it is, and the blanks of every line with a double
quote, because a string of JSON, which lies on one line always, may hold them.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["compressed"]

_RUNS: Final = re.compile(r"[ \t\u00a0]{2,}|[\t\u00a0]")
_INDENT: Final = re.compile(r"[ \t\u00a0]*")
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_BLANKS: Final = " \t\r\u00a0"


def compressed(text: str) -> str:
    lines: list[str] = []
    fence = ""  # the marks that opened the code; empty outside
    for line in text.split("\n"):
        if fence:
            lines.append(line)
            if _closes(line, fence):
                fence = ""
            continue
        found = _FENCE.match(line)
        if found is not None:
            fence = found[1]
            lines.append(line)
            continue
        plain = _line(line)
        if plain or (lines and lines[-1]):
            lines.append(plain)
    while lines and not lines[-1] and not fence:
        lines.pop()
    return "\n".join(lines)


def _line(line: str) -> str:
    line = line.rstrip(_BLANKS)
    if '"' in line:
        return line
    indent = _INDENT.match(line)
    begin = 0 if indent is None else indent.end()
    return line[:begin] + _RUNS.sub(" ", line[begin:])


def _closes(line: str, fence: str) -> bool:
    found = _FENCE.match(line)
    return found is not None and found[1].startswith(fence) and not line[found.end() :].strip()
