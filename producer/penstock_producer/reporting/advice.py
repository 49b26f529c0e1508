"""What to do about something, as values: a sentence and, where an option does it, its field and
value.

Each surface writes the action in its own way: a terminal as a flag, HTTP as a field, a page in
words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock_producer.job.options import OPTIONS

__all__ = ["Advice", "SetOption", "as_field", "as_flag"]


@dataclass(frozen=True, slots=True)
class SetOption:
    """Give the job another value of one of its options."""

    field: str
    value: Any


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do. ``action`` is None where words are all there is."""

    text: str
    action: SetOption | None = None


def as_flag(action: SetOption) -> str:
    """Return the action as it is typed behind the command that made the job."""
    return f"--{OPTIONS[action.field].name} {action.value}"


def as_field(action: SetOption) -> dict[str, Any]:
    """Return the action as the body of a request that changes the job."""
    return {action.field: action.value}
