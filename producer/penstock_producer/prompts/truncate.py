"""How much of a column's text goes into the prompt: `8000`, `8000:head`, `8000:tail`, `8000:ends`;
`2000t` counts tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from penstock_producer.prompts.tokens import Estimate, TokenCounter

__all__ = ["Cut", "NotText", "counts_tokens", "cut_of", "shortened"]

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
    tokens: TokenCounter | None = (
        None  # what counts tokens, where those are meant and not characters
    )

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
    """``tokens`` counts them where a limit is in tokens.

    Raises ValueError, which says what to write."""
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
    """Whether a limit is in tokens."""
    found = _POLICY.fullmatch(str(given))
    return found is not None and found["unit"] is not None


def shortened(
    record: Mapping[str, Any], cuts: Mapping[str, Cut]
) -> tuple[Mapping[str, Any], list[str]]:
    """The record with its texts cut, and the columns whose text was. Raises NotText."""
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
    """A copy of the record; only the objects on the path are new."""
    first, rest = path[0], path[1:]
    return {**record, first: _with(record[first], rest, text) if rest else text}
