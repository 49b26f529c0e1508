"""Write the results of a batch to disk when a client first asks.

Nothing is worked out for one that is never read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock_simulate.answers.refusals import Refusal
from penstock_simulate.batches.folder import Folder, RequestAccount
from penstock_simulate.batches.intake import Asked, Index
from penstock_simulate.batches.timeline import Fate, LineLuck, refusal_of
from penstock_simulate.reply import NO_USAGE, Usage

COUNTED_AT_ONCE = 1000  # good answers that are put into the account together


class Undone(StrEnum):
    """The reason why a request got no answer from the model. The values are OpenAI's codes."""

    TIMED_OUT = "request_timeout"
    EXPIRED = "batch_expired"
    CANCELLED = "batch_cancelled"


class Wording(Protocol):
    """A dialect's reading of a request and writing of its result, without the end of the line."""

    apart: bool  # whether requests without a good answer have a file of their own

    def asked(self, raw: bytes) -> Asked: ...

    def answered(self, asked: Asked, request_id: str) -> tuple[bytes, Usage]: ...

    def refused(self, asked: Asked, refusal: Refusal, request_id: str) -> bytes: ...

    def undone(self, asked: Asked, why: Undone, request_id: str) -> bytes:
        """Return the result of what was not done; empty where it has none."""
        ...

    def unknown(self, line: bytes, asked: Asked) -> bytes:
        """Return the same result under a custom_id that was never given."""
        ...


class Job(NamedTuple):
    """The results to write: the input, how many requests were done, and why others were not."""

    batch: str
    source: Path
    requests: Index
    done: int
    rest: Undone


@dataclass(slots=True)
class Results:
    """The result files of a batch. One is None where there is nothing to put in it."""

    answers: Path | None = None
    errors: Path | None = None
    succeeded: int = 0
    refused: int = 0  # the model's errors, and requests that timed out
    undone: int = 0
    usage: Usage = NO_USAGE


class Spoiler:
    """Spoils lines as providers and networks have: cut ones, unknown ids, results sent twice."""

    def __init__(self, luck: LineLuck, wording: Wording) -> None:
        self._luck, self._wording, self._numbers = luck, wording, count(1)

    def lines(self, line: bytes, asked: Asked) -> list[bytes]:
        match self._luck.kind(next(self._numbers), 3):
            case None:
                return [line]
            case 0:
                return [line[: len(line) // 2]]
            case 1:
                return [self._wording.unknown(line, asked), line]
            case _:
                return [line, line]


class ResultWriter:
    """Writes the results of one batch."""

    def __init__(
        self, folder: Folder, account: RequestAccount, wording: Wording, luck: LineLuck
    ) -> None:
        self._folder, self._account, self._wording = folder, account, wording
        self._spoiler = Spoiler(luck, wording)
        self._good: list[str] = []

    def write(self, job: Job) -> Results:
        """Write the results of a batch.

        Blocks: for a thread."""
        found = Results()
        answers = self._folder.new(".jsonl")
        errors = self._folder.new(".jsonl") if self._wording.apart else answers
        with ExitStack() as files:
            good = files.enter_context(answers.open("wb"))
            bad = files.enter_context(errors.open("wb")) if self._wording.apart else good
            for asked, line, ok in self._lines(job, found):
                for each in self._spoiler.lines(line, asked) if line else ():
                    (good if ok else bad).write(each + b"\n")
        self._account.answered(self._good)
        found.answers = self._kept(answers)
        found.errors = self._kept(errors) if self._wording.apart else None
        return found

    def _lines(self, job: Job, found: Results) -> Iterator[tuple[Asked, bytes, bool]]:
        for at, (fate, raw) in enumerate(job.requests.read(job.source)):
            asked, request_id = self._wording.asked(raw), f"req_{job.batch[-12:]}{at:08x}"
            asked.call.declines = fate is Fate.DECLINED
            why = (
                job.rest if at >= job.done else Undone.TIMED_OUT if fate is Fate.TIMED_OUT else None
            )
            refusal = None if why is not None else refusal_of(fate, asked.call)
            if why is not None:
                found.undone += why is job.rest
                found.refused += why is not job.rest
                yield asked, self._wording.undone(asked, why, request_id), False
            elif refusal is not None:
                found.refused += 1
                yield asked, self._wording.refused(asked, refusal, request_id), False
            else:
                found.succeeded += 1
                yield asked, self._answered(asked, request_id, found), True

    def _answered(self, asked: Asked, request_id: str, found: Results) -> bytes:
        line, usage = self._wording.answered(asked, request_id)
        found.usage = found.usage.plus(usage)
        self._good.append(asked.call.document)
        if len(self._good) >= COUNTED_AT_ONCE:
            self._account.answered(self._good)
            self._good = []
        return line

    def _kept(self, path: Path) -> Path | None:
        if path.stat().st_size:
            self._folder.keep(path)
            return path
        path.unlink()
        return None
