"""`name=value`, as flags take it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from penstock_cli.errors import UsageProblem


def parse_pairs(flag: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Read ``name=value`` pairs; a value that is JSON is taken as JSON, anything else as text.

    Raises UsageProblem.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise UsageProblem(
                f"{flag} {pair!r} is not name=value; write for example {flag} max_tokens=200"
            )
        if name in values:
            raise UsageProblem(f"{flag} {name} is given twice; keep one of them")
        values[name.strip()] = _json_or_text(text)
    return values


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=lambda word: word)
    except ValueError:
        return text
