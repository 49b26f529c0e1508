"""What the simulated provider refuses."""

from __future__ import annotations


class BadSetting(ValueError):
    """A flag or a setting cannot be used; the message names it, the value seen and what to give."""

    exit_status = 2  # bad usage, as everywhere in the command line
