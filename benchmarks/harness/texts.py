"""Texts that look like those of people, in several languages, for counts of tokens.

Their sentences, by language, are in texts.json.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_SENTENCES: Final[Mapping[str, Sequence[str]]] = json.loads(
    Path(__file__).with_suffix(".json").read_text()
)
_NAMES: Final = ("Ana", "Björn", "Chen", "Dmitri", "Émilie", "Farid", "Giulia", "Haruka")


def sentences(luck: random.Random, lang: str, chars: int) -> str:
    """Return sentences of a language, or records of JSON, with about so many characters."""
    found, size = list[str](), 0
    while size < chars:
        one = _record(luck) if lang == "json" else _sentence(luck, lang)
        found.append(one)
        size += len(one) + 1
    return ("" if lang in ("zh", "ja") else "\n" if lang == "json" else " ").join(found)


def _sentence(luck: random.Random, lang: str) -> str:
    signed = f" {luck.choice(_NAMES)}, {luck.randint(1, 28)}.{luck.randint(1, 12)}.2026."
    return luck.choice(_SENTENCES[lang]) + (signed if luck.random() < 0.2 else "")


def _record(luck: random.Random) -> str:
    item = {"sku": f"A-{luck.randint(10_000, 99_999)}", "qty": luck.randint(1, 40)}
    price = round(luck.uniform(1, 400), 2)
    return json.dumps(
        {
            "customer": luck.choice(_NAMES),
            "item": item,
            "unit_price": price,
            "paid": luck.random() < 0.5,
        }
    )
