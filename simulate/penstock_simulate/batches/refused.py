"""A call of a batch API that is refused, on its way to the dialect that says so."""

from __future__ import annotations

from penstock_simulate.answers.refusals import Refusal


class Refused(Exception):
    """Raised where the reason is found; written down where the call came in."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
