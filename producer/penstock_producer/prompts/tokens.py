"""Texts made shorter: cut at so many characters or tokens, or by their blanks.

Tokens are counted by the tokenizer of a model, or by a rule that is the same on every machine. A
row is rendered at submit, by feeders and by workers, and has to become the same request each time.
So a job names its tokenizer by path and digest, and a machine that has another file there, or none,
says so and does not guess.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from penstock_producer.errors import SourceUnavailable

__all__ = [
    "FILE",
    "Cut",
    "Estimate",
    "NotText",
    "compressed",
    "counter_of",
    "counts_tokens",
    "cut_of",
    "encoder_of",
    "in_words",
    "pinned",
    "shortened",
]

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
    """A counter of tokens that finds where a text is to be cut.

    Both answers are places between characters of ``text``; its ends where it has no more than
    ``tokens``.
    """

    def head(self, text: str, tokens: int) -> int:
        """Return where the first tokens end."""
        ...

    def tail(self, text: str, tokens: int) -> int:
        """Return where the last tokens begin."""
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
        """Return the first character, and the one behind the last, of each token."""
        return self._tokenizer.encode(text, add_special_tokens=False).offsets


def pinned(path: str) -> str:
    """Return the tokenizer's file with its digest. Raises ValueError, which says what to do."""
    place, _, digest = path.partition(PIN)
    if digest:
        return path
    where = Path(place).absolute()
    where = where / FILE if where.is_dir() else where
    return f"{where}{PIN}{hashlib.sha256(_read(where)).hexdigest()}"


def in_words(tokenizer: str | None) -> str:
    """Return how a job counts the tokens of its limits."""
    return ESTIMATED if tokenizer is None else f"by {tokenizer.partition(PIN)[0]}"


def counter_of(tokenizer: str | None) -> TokenCounter:
    """Return the counter of a job's tokenizer.

    Raises SourceUnavailable where it is not on this machine as it was when the job was submitted.
    """
    if tokenizer is None:
        return Estimate()
    try:
        return _loaded(pinned(tokenizer))
    except ValueError as error:
        raise SourceUnavailable(f"the job's tokenizer cannot be used here: {error}") from error


def encoder_of(place: str) -> Callable[[str], int]:
    """Return what counts the tokens of a text, by a ``pinned`` file. Raises ValueError."""
    return _loaded(place).count


@lru_cache(maxsize=KEPT)
def _loaded(place: str) -> ByTokenizer:
    """Load a pinned tokenizer. Raises ValueError for another file than the pinned one."""
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


MARK: Final = " […] "  # stands where the middle was; it counts
MARK_TOKENS: Final = 4  # at most, with the tokenizers of today
_POLICY: Final = re.compile(
    r"(?P<most>[1-9]\d{0,8})(?P<unit> ?t(?:ok(?:ens?)?)?)?(?::(?P<keep>head|tail|ends))?", re.ASCII
)


class NotText(TypeError):
    """The value of a column that is to be cut is a list or an object."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value
        super().__init__(name)


class Cut(NamedTuple):
    most: int
    keep: str  # `head`, `tail`, or `ends`
    # what counts tokens, where those are meant and not characters
    tokens: TokenCounter | None = None

    def of(self, text: str) -> str:
        if self.tokens is not None:
            return self._by_tokens(text, self.tokens)
        if len(text) <= self.most:
            return text
        if self.keep == "head":
            return text[: self.most]
        if self.keep == "tail":
            return text[-self.most :]
        mark = MARK if self.most > 2 * len(MARK) else ""
        kept = self.most - len(mark)
        begin = (kept + 1) // 2
        return text[:begin] + mark + text[len(text) - (kept - begin) :]

    def _by_tokens(self, text: str, tokens: TokenCounter) -> str:
        if self.keep == "tail":
            return text[tokens.tail(text, self.most) :]
        end = tokens.head(text, self.most)
        if self.keep == "head" or end == len(text):
            return text[:end]
        mark, left = (
            (MARK, self.most - MARK_TOKENS) if self.most > 2 * MARK_TOKENS else ("", self.most)
        )
        begin = tokens.head(text, left - left // 2)
        rest = tokens.tail(text, left // 2) if left // 2 else len(text)
        return text[:begin] + mark + text[max(begin, rest) :]


def cut_of(given: object, tokens: TokenCounter | None = None) -> Cut:
    """Read a limit; ``tokens`` counts tokens where it is in tokens.

    Raises ValueError, which says what to write.
    """
    found = _POLICY.fullmatch(str(given)) if type(given) in (int, str) else None
    if found is None:
        raise ValueError(
            "write a number of characters, such as 8000, or of tokens, such as 2000t, and what is "
            "kept: 8000:head, 8000:tail or 2000t:ends"
        )
    return Cut(
        int(found["most"]),
        found["keep"] or "head",
        (tokens or Estimate()) if found["unit"] else None,
    )


def counts_tokens(given: object) -> bool:
    """Return whether a limit is in tokens."""
    found = _POLICY.fullmatch(str(given))
    return found is not None and found["unit"] is not None


def shortened(
    record: Mapping[str, Any], cuts: Mapping[str, Cut]
) -> tuple[Mapping[str, Any], list[str]]:
    """Return the record with its texts cut, and the columns whose text was. Raises NotText."""
    cut: list[str] = []
    for name, policy in cuts.items():
        path = [name] if name in record else name.split(".")
        value = _at(record, path)
        if isinstance(value, (list, tuple, Mapping)):
            raise NotText(name, value)
        kept = policy.of(value) if isinstance(value, str) else value
        if kept is not value and kept != value:
            record = _with(record, path, kept)
            cut.append(name)
    return record, cut


def _at(record: Any, path: list[str]) -> Any:
    for part in path:
        record = record.get(part) if isinstance(record, Mapping) else None
    return record


def _with(record: Mapping[str, Any], path: list[str], text: str) -> Mapping[str, Any]:
    """Return a copy of the record; only the objects on the path are new."""
    first, rest = path[0], path[1:]
    return {**record, first: _with(record[first], rest, text) if rest else text}


_RUNS: Final = re.compile(r"[ \t\u00a0]{2,}|[\t\u00a0]")
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_BLANKS: Final = " \t\r\u00a0"


def compressed(text: str) -> str:
    lines: list[str] = []
    fence = ""  # the marks that opened the code; empty outside
    for line in text.split("\n"):
        marks = _fence(line)
        if fence:
            lines.append(line)
            if marks.startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        elif marks:
            fence = marks
            lines.append(line)
        else:
            plain = _line(line)
            if plain or (lines and lines[-1]):
                lines.append(plain)
    while lines and not lines[-1] and not fence:
        lines.pop()
    return "\n".join(lines)


def _fence(line: str) -> str:
    """Return the marks that this line begins or ends code with; empty for any other."""
    if "```" not in line and "~~~" not in line:
        return ""
    found = _FENCE.match(line)
    return "" if found is None else found[1]


def _line(line: str) -> str:
    plain = line.rstrip(_BLANKS)
    if '"' in plain or _RUNS.search(plain) is None:
        return plain
    text = plain.lstrip(_BLANKS)
    return plain[: len(plain) - len(text)] + _RUNS.sub(" ", text)
