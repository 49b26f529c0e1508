"""An engine that fails every request takes itself out: after a run of failures it is asked for what
any engine can do."""

from __future__ import annotations

from typing import Final

# failures without one answer between them; documents that fail by themselves come in runs, too
IN_A_ROW: Final = 32


class FailureRun:
    """Counts them.

    The one who asks the probe decides by it: requests alone could talk a good engine to death."""

    def __init__(self, in_a_row: int = IN_A_ROW) -> None:
        self._in_a_row = in_a_row
        self._failures = 0

    def answered(self) -> None:
        self._failures = 0

    def failed(self) -> bool:
        """True when it is time to probe the engine; the count begins anew."""
        self._failures += 1
        if self._failures < self._in_a_row:
            return False
        self._failures = 0
        return True
