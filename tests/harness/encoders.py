"""Encoders for tests: they compute nothing, keep what they were given, and fail on request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from penstock_workers.lanes.embed.buckets import TokenIds, Vector
from penstock_workers.lanes.embed.encoder import OutOfMemory
from penstock_workers.lanes.scoring import Text

POISON = 666  # a token that makes the encoder fail


class FakeEncoder:
    """One token per word: its length plus one.

    A vector is (number of tokens, first token, 0, 0)."""

    max_tokens = 100
    dimensions = 4
    labels: Sequence[str] = ()
    vocabulary = 1_000
    matryoshka: bool | None = False
    short_sizes: frozenset[int] = frozenset()
    parameters = 0
    on_cpu = True

    def __init__(self, *, memory: int | None = None) -> None:
        self.memory = memory  # padded tokens that fit
        self.batches: list[list[TokenIds]] = []
        self.built: list[list[TokenIds]] = []
        self.calls: list[list[Text]] = []  # texts tokenised together

    def tokenise(self, texts: Sequence[Text]) -> list[TokenIds]:
        self.calls.append(list(texts))
        if any("\0" in text for text in texts):
            raise ValueError("no such character")
        return [[len(word) + 1 for word in _words(text)] for text in texts]

    def trim(self, text: Text) -> TokenIds:
        return [len(word) + 1 for word in _words(text)][: self.max_tokens]

    def build(self, ids: Sequence[TokenIds]) -> list[TokenIds]:
        self.built.append(list(ids))
        return list(ids)

    def encode(self, ids: list[TokenIds]) -> list[Vector]:
        self.batches.append(list(ids))
        if self.memory is not None and max(map(len, ids)) * len(ids) > self.memory:
            raise OutOfMemory("no memory left")
        if any(POISON in row for row in ids):
            raise RuntimeError("poison")
        return [[float(len(row)), float(row[0]), 0.0, 0.0] for row in ids]

    def sizes(self) -> list[list[int]]:
        """Lengths of the rows of each batch."""
        return [[len(row) for row in batch] for batch in self.batches]


class FakeClassifier(FakeEncoder):
    """A pair is one row, the words of both sides.

    A score is the words less the class's number, a logit twice that."""

    def __init__(self, *labels: str, memory: int | None = None) -> None:
        super().__init__(memory=memory)
        self.labels, self.dimensions = labels, len(labels)

    def encode(self, ids: list[TokenIds]) -> list[Vector]:
        numbers = [
            [row[0] - place for place in range(self.dimensions)] for row in super().encode(ids)
        ]
        return [(row, [2 * number for number in row]) for row in numbers]


def _words(text: Text) -> list[str]:
    """Of a pair, those of both sides."""
    return (text if isinstance(text, str) else " ".join(text)).split()


class AtOnce(Executor):
    """Runs what it is given where it is given."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class OnCall(Executor):
    """A thread that is busy until ``step`` says that it has done the next thing."""

    def __init__(self) -> None:
        self._given: list[tuple[Callable[[], Any], Future[Any]]] = []
        self.given = asyncio.Event()  # set with each thing to do

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._given.append((lambda: fn(*args, **kwargs), future))
        self.given.set()
        return future

    @property
    def busy(self) -> int:
        return len(self._given)

    def step(self) -> None:
        work, future = self._given.pop(0)
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
