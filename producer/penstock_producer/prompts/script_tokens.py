"""About how many tokens a text has, by its script: fitted to a real tokenizer, for where none is at
hand."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["CALIBRATED", "by_script"]

CALIBRATED: Final = "characters, calibrated by script to o200k_base on 2026-11-22"
# What o200k_base makes of texts in 40 languages and of code (benchmarks/RESULTS.md, "Tokens by
# characters"): on average within a tenth for English, code, JSON, German, French, Chinese, Japanese
# and Korean, for single texts within a third.
WORD, LETTERS_WHOLE, LETTER_BEYOND = (
    1.0,
    6,
    0.5,
)  # a word of ASCII letters, and what each letter beyond the sixth adds
MARKS, MARK_BEYOND = 0.5, 0.33  # a run of punctuation, and each mark in it beyond the first
_WORDS: Final = re.compile(r"[A-Za-z]+")
_MARKS: Final = re.compile(r"[!-/:-@\[-`{-~]+")
_OF_ASCII: Final = (
    (re.compile(r"[0-9]{1,3}"), 1.0),
    (re.compile(r"\n\s*"), 0.6),
    (re.compile(r" {2,}"), 1.0),
)
_LETTERS: Final = (
    (re.compile(r"[\u00c0-\u024f\u1e00-\u1eff]"), 0.42),  # Latin letters with accents
    (re.compile(r"[\u0370-\u03ff]"), 0.42),  # Greek
    (re.compile(r"[\u0400-\u052f]"), 0.31),  # Cyrillic
    (re.compile(r"[\u0590-\u077f]"), 0.40),  # Hebrew, Arabic
    (re.compile(r"[\u0900-\u0eff]"), 0.41),  # scripts of India, Thai, Lao
    (re.compile(r"[\u3000-\u303f\uff00-\uffef]"), 0.8),  # punctuation of Chinese and Japanese
    (re.compile(r"[\u3040-\u30ff]"), 0.72),  # kana
    (re.compile(r"[\u3400-\u9fff\uf900-\ufaff]"), 0.76),  # Chinese characters
    (re.compile(r"[\uac00-\ud7af]"), 0.79),  # Hangul
)
OTHER: Final = 2.0  # an emoji, a rare script: two or three tokens each
_OTHER: Final = re.compile(
    r"[^\x00-\xbf\u00c0-\u024f\u1e00-\u1eff\u0370-\u052f\u0590-\u077f\u0900-\u0eff\u3000-\u30ff\u3400-\u9fff\uac00-\ud7af"
    r"\uf900-\ufaff\uff00-\uffef]"
)


def by_script(text: str) -> float:
    """Linear in what the text is made of."""
    words, marks = _WORDS.findall(text), _MARKS.findall(text)
    tokens = WORD * len(words) + LETTER_BEYOND * sum(
        max(0, len(word) - LETTERS_WHOLE) for word in words
    )
    tokens += MARKS * len(marks) + MARK_BEYOND * sum(len(run) - 1 for run in marks)
    tokens += sum(each * len(pattern.findall(text)) for pattern, each in _OF_ASCII)
    if not text.isascii():
        tokens += sum(each * len(pattern.findall(text)) for pattern, each in _LETTERS)
        tokens += OTHER * len(_OTHER.findall(text))
    return tokens
