"""What earlier replays of a job have changed.

Their changes travel on with the requests until they are unset.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock_ledger.model import Feed

PROMPT = "prompt"


def changes_in_force(feeds: Iterable[Feed]) -> dict[str, tuple[str, int]]:
    """Return by field what the replays have set it to, as text, and in which generation."""
    force: dict[str, tuple[str, int]] = {}
    for feed in feeds:
        for name in feed.overrides.get("unset") or ():
            force.pop(name, None)
        for name, value in (feed.overrides.get("set") or {}).items():
            force[name] = (_as_text(value), feed.generation)
        if feed.overrides.get(PROMPT) is not None:
            force[PROMPT] = (_as_text(feed.overrides[PROMPT]), feed.generation)
    return force


def say_in_force(force: Mapping[str, tuple[str, int]]) -> str:
    """Return one sentence about the changes; empty where there are none."""
    if not force:
        return ""
    listed = ", ".join(
        f"{name}={value} (generation {generation})" for name, (value, generation) in force.items()
    )
    names = " ".join(f"--unset {name}" for name in force)
    return f"requests keep what replays have set: {listed}; {names} takes it back"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
