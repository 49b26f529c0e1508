"""A call raises these, besides what Penstock raises everywhere.

PenstockError
├── BadCall       an argument or the rows cannot be used: nothing was started, nothing was paid
├── RunStopped    (job.py) the job is paused and cannot go on by itself; ``answers`` are those so far
└── RunFailed     this machine, a server or a folder is at fault; the same call goes on

An interrupt is Python's own KeyboardInterrupt.
"""

from __future__ import annotations

from penstock_producer import PenstockError

__all__ = ["BadCall", "PenstockError", "RunFailed"]


class BadCall(PenstockError, ValueError):
    """An argument or the rows cannot be used; the message names it and the fix."""


class RunFailed(PenstockError):
    """A part that the job needs beside its provider does not work."""
