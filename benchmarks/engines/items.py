"""The items of an engine benchmark: lines of an OpenAI Batch file, made of words of the standard
library, always the same."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from benchmarks.engines.setup import SERVED_AS, Setup, tiny_model

# words of a question; the tiny tokenizer makes some 35 tokens of a prompt, template included
SHORTEST, LONGEST = (6, 24)
SOURCES = 20  # files whose words are used

Item = dict[str, Any]


def items(setup: Setup, number: int, *, first: int = 0) -> list[Item]:
    """Numbered from ``first``: other numbers are other texts, so that no cache knows them."""
    return [_item(setup, n, [_user(n)]) for n in range(first, first + number)]


def write(path: Path, lines: Sequence[Item]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return path


def read(path: Path) -> Iterator[Item]:
    with path.open("rb") as file:
        yield from map(orjson.loads, file)


def _item(setup: Setup, number: int, messages: list[dict[str, str]]) -> Item:
    body = {
        "model": SERVED_AS,
        "messages": messages,
        "max_tokens": setup.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    return {
        "custom_id": f"item-{number:08d}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
    }


def _user(number: int) -> dict[str, str]:
    chosen = random.Random(number)
    words = " ".join(chosen.choices(_words(), k=chosen.randint(SHORTEST, LONGEST)))
    return {"role": "user", "content": f"Item {number}: {words}"}


@cache
def _words() -> tuple[str, ...]:
    texts = (path.read_text(errors="ignore") for path in tiny_model().standard_library()[:SOURCES])
    return tuple(word for text in texts for word in text.split() if word.isalpha())
