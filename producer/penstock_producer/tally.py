"""What the options of a job changed in its rows, counted where they are read, so that nothing is
cut in silence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from penstock_producer.pins import PREPARED

__all__ = ["Tally"]


@dataclass(slots=True)
class Tally:
    """Counts rows, and characters."""

    cut: dict[str, int] = field(default_factory=dict)  # rows by the column whose text was cut
    saved_chars: int = 0  # blanks that compression took out

    def note(self, cut: Sequence[str], saved_chars: int) -> None:
        """One row."""
        for name in cut:
            self.cut[name] = self.cut.get(name, 0) + 1
        self.saved_chars += saved_chars

    def plus(self, other: Self) -> Self:
        names = dict.fromkeys((*self.cut, *other.cut))
        cut = {name: self.cut.get(name, 0) + other.cut.get(name, 0) for name in names}
        return type(self)(cut, self.saved_chars + other.saved_chars)

    def to_json(self) -> dict[str, Any]:
        return {"cut": dict(self.cut), "saved_chars": self.saved_chars}

    @classmethod
    def of_pin(cls, pin: Mapping[str, Any]) -> Self:
        """What the survey of a job counted; nothing for a job of an earlier release."""
        stored = pin.get(PREPARED)
        if not isinstance(stored, Mapping):
            return cls()
        return cls(dict(stored["cut"]), int(stored["saved_chars"]))
