"""The console that commands print on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 200  # into a file or a pipe nothing wraps at 80 columns


def console() -> Console:
    """No guessing at numbers and paths, no markup from foreign text; wide in files and pipes."""
    from rich.console import Console

    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
