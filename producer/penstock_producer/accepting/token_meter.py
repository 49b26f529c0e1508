"""How many tokens a request has: by the tokenizer of its model where one is at hand on this
machine, else by its characters.

Nothing is ever fetched. A tokenizer is at hand as the `tokenizer.json` that is named, as the one in
the folder that is the job's model, or, for OpenAI's models, as tiktoken's own file in its cache.
Large samples are counted in part, and the rest by the ratio that was found.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import orjson

from penstock_producer.prompts.script_tokens import CALIBRATED, by_script
from penstock_producer.prompts.tokens import FILE, encoder_of, pinned

__all__ = ["TokenMeter", "meter_of"]

COUNTED_CHARS: Final = (
    1024 * 1024
)  # of all texts: what is counted before the ratio that was found is believed
PIECE_CHARS: Final = (
    20_000  # given to a tokenizer at once: some take quadratic time on a text without blanks
)
MESSAGE_TOKENS: Final = 4  # around each chat message: its role and its marks
MEDIA: Final = re.compile(
    r"(?:data:[\w/+.-]{1,60};base64,)?(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{1000,}={0,2}"
    # no text, and no tokens of one; looked for only where a run begins, so that many runs that are
    # too
    # short cost little
)
_TEXTS: Final = (
    "messages",
    "system",
    "prompt",
    "input",
    "instructions",
    "contents",
    "systemInstruction",
    "query",
    "documents",
    "text_1",
    "text_2",
)
_AS_JSON: Final = ("tools", "functions", "response_format")
_MARKS: Final = frozenset(
    {"role", "type", "detail", "url", "data", "mime_type", "mimeType", "media_type", "format", "id"}
)
_TIKTOKEN_FILES: Final = {  # address, and the digest that tiktoken itself wants
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
}
_TIKTOKEN_PLACE: Final = "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"
_TIKTOKEN_CACHES: Final = ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR")

Encoder = Callable[[str], float]
"""Tokens of a text."""


class TokenMeter:
    """Counts the prompts of requests. ``by``: what it counts them by, for people."""

    def __init__(self, encoder: Encoder = by_script, by: str = CALIBRATED) -> None:
        self._encoder, self.by = encoder, by
        self._chars, self._tokens = 0, 0.0  # counted so far

    def prompt(self, body: Any) -> float:
        """Tokens of a request's prompt."""
        if not isinstance(body, dict):
            return 0.0
        tokens = sum(self.text(text) for text in _texts(body))
        messages = body.get("messages")
        tokens += sum(
            len(found) for found in _lists(body) if all(isinstance(one, int) for one in found)
        )
        return tokens + (MESSAGE_TOKENS * (len(messages) + 1) if isinstance(messages, list) else 0)

    def text(self, text: str) -> float:
        """Of one text; of a sample of some size from its characters, at the ratio of those
        before."""
        if self._chars >= COUNTED_CHARS:
            return len(text) * self._tokens / self._chars
        pieces = range(0, len(text), PIECE_CHARS)
        tokens = float(sum(self._encoder(text[start : start + PIECE_CHARS]) for start in pieces))
        self._chars, self._tokens = self._chars + len(text), self._tokens + tokens
        return tokens


def meter_of(model: str | None, tokenizer: str | None = None) -> TokenMeter:
    """For the requests of one job.

    Raises ValueError for a ``tokenizer`` that was named and cannot be used."""
    if tokenizer is not None:
        place = pinned(tokenizer)
        return TokenMeter(encoder_of(place), f"the tokenizer {place.partition('#')[0]}")
    own = _beside_model(model)
    if own is not None:
        return own
    encoder = None if model is None else _tiktoken(model)
    return TokenMeter() if encoder is None else TokenMeter(encoder[0], f"tiktoken's {encoder[1]}")


def _beside_model(model: str | None) -> TokenMeter | None:
    """Of a model that is a folder of this machine, with its tokenizer in it."""
    if model is None or not (Path(model) / FILE).is_file():
        return None
    place = Path(model) / FILE
    try:
        return TokenMeter(encoder_of(pinned(str(place))), f"the tokenizer {place}")
    except ValueError:
        return None  # it was not asked for


@lru_cache(maxsize=4)
def _tiktoken(model: str) -> tuple[Encoder, str] | None:
    """Where tiktoken is installed, knows the model, and has its file already: it would fetch
    another one."""
    try:
        import tiktoken  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    try:
        name = str(tiktoken.encoding_name_for_model(model))
    except KeyError:
        return None
    if name not in _TIKTOKEN_FILES or not _is_cached(name):
        return None
    encoding = tiktoken.get_encoding(name)
    return (lambda text: len(encoding.encode_ordinary(text))), name


def _is_cached(name: str) -> bool:
    folder = next((os.environ[one] for one in _TIKTOKEN_CACHES if one in os.environ), None)
    place = Path(tempfile.gettempdir(), "data-gym-cache") if folder is None else Path(folder)
    address = _TIKTOKEN_PLACE.format(name)
    try:
        data = (
            place / hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()
        ).read_bytes()
    except OSError:
        return False
    return bool(folder != "") and hashlib.sha256(data).hexdigest() == _TIKTOKEN_FILES[name]


def _texts(body: dict[str, Any]) -> Iterator[str]:
    known = [body[name] for name in _TEXTS if name in body]
    for value in known or [body]:  # of another API: all that it says
        yield from _inside(value)
    for name in _AS_JSON:
        if body.get(name):
            yield orjson.dumps(body[name]).decode()


def _inside(value: Any) -> Iterator[str]:
    """Every text in it but for those that say what the others are."""
    if isinstance(value, str):
        yield MEDIA.sub("", value)
    elif isinstance(value, list):
        for one in value:
            yield from _inside(one)
    elif isinstance(value, dict):
        for name, one in value.items():
            if name not in _MARKS:
                yield from _inside(one)


def _lists(body: dict[str, Any]) -> Iterator[list[Any]]:
    """Prompts that are lists of tokens already."""
    for name in ("prompt", "input"):
        value = body.get(name)
        if isinstance(value, list) and value:
            yield from (one for one in [value, *value] if isinstance(one, list) and one)
