"""Where so many tokens of a text end: by the tokenizer of a model, or by a rule that is the same on
every machine.

A row is rendered at submit, by feeders and by workers, and has to become the same request each
time. So a job names its tokenizer by path and digest, and a machine that has another file there, or
none, says so and does not guess.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol

from penstock_producer.errors import SourceUnavailable

__all__ = ["FILE", "Estimate", "TokenCounter", "counter_of", "encoder_of", "in_words", "pinned"]

FILE: Final = "tokenizer.json"
MAX_FILE_BYTES: Final = 256 * 1024 * 1024  # the largest of today's have 40 MB
KEPT: Final = 4  # tokenizers in memory; a job has one
PIN: Final = "#sha256="
ASCII_CHARS: Final = 4  # for each token: what English text comes to with the tokenizers of today
# of UTF-8, in texts with other letters: 1.5 letters of Cyrillic or Greek, one sign of Chinese
OTHER_BYTES: Final = 3
ESTIMATED: Final = (
    f"by estimate: {ASCII_CHARS} characters of plain English for a token, {OTHER_BYTES} bytes of "
    "other texts"
)


class TokenCounter(Protocol):
    """Both are places between characters of ``text``; its ends where it has no more than
    ``tokens``."""

    def head(self, text: str, tokens: int) -> int:
        """Where the first tokens end."""
        ...

    def tail(self, text: str, tokens: int) -> int:
        """Where the last tokens begin."""
        ...


class Estimate:
    """By characters: it needs no file, and says the same everywhere."""

    def head(self, text: str, tokens: int) -> int:
        if text.isascii():
            return min(len(text), tokens * ASCII_CHARS)
        return len(text.encode(errors="replace")[: tokens * OTHER_BYTES].decode(errors="ignore"))

    def tail(self, text: str, tokens: int) -> int:
        if text.isascii():
            return max(0, len(text) - tokens * ASCII_CHARS)
        return len(text) - len(
            text.encode(errors="replace")[-tokens * OTHER_BYTES :].decode(errors="ignore")
        )


class ByTokenizer:
    """By the tokenizer of a model, from its `tokenizer.json`."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def head(self, text: str, tokens: int) -> int:
        spans = self._spans(text)
        return int(spans[tokens][0]) if len(spans) > tokens else len(text)

    def tail(self, text: str, tokens: int) -> int:
        spans = self._spans(text)
        return int(spans[-tokens - 1][1]) if len(spans) > tokens else 0

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _spans(self, text: str) -> Any:
        """First character and the one behind the last, of each token."""
        return self._tokenizer.encode(text, add_special_tokens=False).offsets


def pinned(path: str) -> str:
    """The tokenizer's file with its digest. Raises ValueError, which says what to do."""
    place, _, digest = path.partition(PIN)
    if digest:
        return path
    where = Path(place).absolute()
    where = where / FILE if where.is_dir() else where
    return f"{where}{PIN}{hashlib.sha256(_read(where)).hexdigest()}"


def in_words(tokenizer: str | None) -> str:
    """How a job counts the tokens of its limits."""
    return ESTIMATED if tokenizer is None else f"by {tokenizer.partition(PIN)[0]}"


def counter_of(tokenizer: str | None) -> TokenCounter:
    """Raises SourceUnavailable where the job's tokenizer is not on this machine, as it was when the
    job was submitted."""
    if tokenizer is None:
        return Estimate()
    try:
        return _loaded(pinned(tokenizer))
    except ValueError as error:
        raise SourceUnavailable(f"the job's tokenizer cannot be used here: {error}") from error


def encoder_of(place: str) -> Callable[[str], int]:
    """Counts the tokens of a text, by a ``pinned`` file. Raises ValueError."""
    return _loaded(place).count


@lru_cache(maxsize=KEPT)
def _loaded(place: str) -> ByTokenizer:
    """Raises ValueError."""
    path, _, digest = place.partition(PIN)
    data = _read(Path(path))
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError(
            f"{path} is not the file that the job was submitted with; put that one there"
        )
    try:
        from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError("reading it needs a package: pip install tokenizers") from None
    try:
        return ByTokenizer(Tokenizer.from_buffer(data))
    except Exception as error:  # of a library in Rust, which raises Exception itself
        raise ValueError(
            f"{path} is not a tokenizer ({error}); name the {FILE} of a model"
        ) from error


def _read(path: Path) -> bytes:
    try:
        size = os.stat(path).st_size
        if size > MAX_FILE_BYTES:
            raise ValueError(
                f"{path} has {size} bytes, and {MAX_FILE_BYTES} are read; name the {FILE} of a "
                "model"
            )
        return path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read ({error.strerror}); name the {FILE} of a model, or its folder"
        ) from error
