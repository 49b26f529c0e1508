"""How much of a column's text goes into the prompt: `8000`, `8000:head`, `8000:tail`, `8000:ends`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

__all__ = ["Cut", "NotText", "cut_of", "shortened"]

MARK: Final = " […] "  # stands where the middle was; it counts
_POLICY: Final = re.compile(r"(?P<chars>[1-9]\d{0,8})(?::(?P<keep>head|tail|ends))?", re.ASCII)
_TOKENS: Final = re.compile(r"\d+\s*t(okens)?(:.*)?", re.ASCII)


class NotText(TypeError):
    """The value of a column that is to be cut is a list or an object."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value
        super().__init__(name)


class Cut(NamedTuple):
    chars: int
    keep: str  # `head`, `tail`, or `ends`

    def of(self, text: str) -> str:
        if len(text) <= self.chars:
            return text
        if self.keep == "head":
            return text[: self.chars]
        if self.keep == "tail":
            return text[-self.chars :]
        mark = MARK if self.chars > 2 * len(MARK) else ""
        kept = self.chars - len(mark)
        begin = (kept + 1) // 2
        return text[:begin] + mark + text[len(text) - (kept - begin) :]


def cut_of(given: object) -> Cut:
    """Raises ValueError, which says what to write."""
    found = _POLICY.fullmatch(str(given)) if type(given) in (int, str) else None
    if found is not None:
        return Cut(int(found["chars"]), found["keep"] or "head")
    if isinstance(given, str) and _TOKENS.fullmatch(given):
        raise ValueError(
            "tokens are the model's to count, and its tokenizer is not known where prompts are rendered; give characters, "
            "about 4 for each token of English text"
        )
    raise ValueError("write a number of characters, such as 8000, and what is kept: 8000:head, 8000:tail or 8000:ends")


def shortened(record: Mapping[str, Any], cuts: Mapping[str, Cut]) -> tuple[Mapping[str, Any], list[str]]:
    """The record with its texts cut, and the columns whose text was. Raises NotText."""
    cut: list[str] = []
    for name, policy in cuts.items():
        path = [name] if name in record else name.split(".")
        value = _at(record, path)
        if isinstance(value, (list, tuple, Mapping)):
            raise NotText(name, value)
        if isinstance(value, str) and len(value) > policy.chars:
            record = _with(record, path, policy.of(value))
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
