"""What a check of `penstock doctor` finds: one line of its report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# of a check: a server that takes longer does not answer, as far as a job is concerned
REDIS_TIMEOUT_S: Final = 5.0


class Verdict(StrEnum):
    GOOD = "ok"
    WARNING = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report."""

    verdict: Verdict
    subject: str
    seen: str
    fix: str = ""
