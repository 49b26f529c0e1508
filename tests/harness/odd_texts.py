"""Texts that break what was not made for them; tests push each through every door at which text
enters."""

from __future__ import annotations

from typing import Final

NUL: Final = "nul \0 end"
HALF: Final = "half \ud83d of it"
LARGE: Final = "x" * 10_000_000

TEXTS: Final[dict[str, str]] = {
    "NUL": NUL,
    "half an emoji": HALF,
    "low half": "\ude00 first",
    "two halves in the wrong order": "\ude00\ud83d",
    # as Python reads an argument or a file's name that is not UTF-8
    "raw bytes of a name": "caf\udce9",
    "line separators": "a\u2028b\u2029c\x85d",
    "right to left override": "safe\u202egpj.exe",
    "byte order mark": "a\ufeffb",
    "combining": "e\u0301 and \u00e9",
    "emoji with joiners": "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "control characters": "bell \x07 escape \x1b[2J delete \x7f",
    "blanks": " \ta\r\n ",
    "last code point": "\U0010ffff\ufffe\uffff",
    "ten megabytes": LARGE,
}
"""By what is odd about them."""

SHORT: Final = {name: text for name, text in TEXTS.items() if text is not LARGE}


def has_half(text: str) -> bool:
    return any("\ud800" <= one <= "\udfff" for one in text)
