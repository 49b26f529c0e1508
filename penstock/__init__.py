"""Penstock from a notebook or a script: one call, with rows in and the same rows with answers out.

    answers = penstock.run(df, prompt="Categorise: {text}", model="gpt-x")
    answers.to_pandas()

It is `penstock run` behind a function: the same engine, and the same resume. Importing this package
costs next to nothing; what a call needs is imported with the call.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.answers import Answer as Answer
    from penstock.answers import Answers as Answers
    from penstock.calls import arun as arun
    from penstock.calls import run as run
    from penstock.calls import stream as stream
    from penstock.errors import BadCall as BadCall
    from penstock.errors import PenstockError as PenstockError
    from penstock.errors import RunFailed as RunFailed
    from penstock.job import Job as Job
    from penstock.job import RunStopped as RunStopped
    from penstock.place import forget as forget
    from penstock.previews import Preview as Preview
    from penstock.previews import preview as preview
    from penstock.remote import connect as connect

_HOMES = {
    "Answer": "answers",
    "Answers": "answers",
    "BadCall": "errors",
    "Job": "job",
    "PenstockError": "errors",
    "Preview": "previews",
    "RunFailed": "errors",
    "RunStopped": "job",
    "arun": "calls",
    "connect": "remote",
    "forget": "place",
    "preview": "previews",
    "run": "calls",
    "stream": "calls",
}
__all__ = [  # noqa: PLE0604, RUF100 - as above, for type checkers
    "Answer",
    "Answers",
    "BadCall",
    "Job",
    "PenstockError",
    "Preview",
    "RunFailed",
    "RunStopped",
    "arun",
    "connect",
    "forget",
    "preview",
    "run",
    "stream",
]


def __getattr__(name: str) -> object:
    """Load a public name on its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    found: object = getattr(import_module(f"penstock.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
