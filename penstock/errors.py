"""What a call raises, besides what Penstock raises everywhere.

PenstockError
├── BadCall       an argument or the rows cannot be used: nothing was started, nothing was paid
├── RunStopped    the job is paused and cannot go on by itself; ``answers`` are those so far
└── RunFailed     this machine, a server or a folder is at fault; the same call goes on

An interrupt is Python's own KeyboardInterrupt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_producer import PenstockError

if TYPE_CHECKING:
    from penstock.answers import Answers

__all__ = ["BadCall", "PenstockError", "RunFailed", "RunStopped"]


class BadCall(PenstockError, ValueError):
    """An argument or the rows cannot be used; the message names it and the fix."""


class RunFailed(PenstockError):
    """What the job needs beside its provider does not work."""


class RunStopped(PenstockError):
    """The job is paused, and a person has to say how it goes on."""

    def __init__(self, message: str, answers: Answers) -> None:
        super().__init__(message)
        self.answers = answers
