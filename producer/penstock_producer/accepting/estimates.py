"""A job's first documents say how many tokens and how much money it may take.

Tokens are counted by the model's tokenizer where there is one. Elsewhere they are guessed by the
script of a text, fitted to a real tokenizer.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeGuard

import orjson

from penstock_producer.prices import ModelPrices, TokensUsed
from penstock_producer.prompts.tokens import FILE, encoder_of, pinned

__all__ = [
    "CALIBRATED",
    "CHARS_PER_TOKEN",
    "DEFAULT_OUTPUT_TOKENS",
    "MTOK",
    "Estimate",
    "Measure",
    "TokenMeter",
    "answers_asked",
    "by_script",
    "meter_of",
    "output_asked",
    "sound_bytes",
]


CALIBRATED: Final = "characters, calibrated by script to o200k_base on 2026-11-22"
# What o200k_base makes of texts in 40 languages and of code (benchmarks/RESULTS.md, "Tokens by
# characters"): on average within a tenth for English, code, JSON, German, French, Chinese, Japanese
# and Korean, for single texts within a third.
# a word of ASCII letters, and what each letter beyond the sixth adds
WORD, LETTERS_WHOLE, LETTER_BEYOND = (1.0, 6, 0.5)
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
    """Estimate the tokens of a text, linear in what it is made of."""
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


# of all texts: what is counted before the ratio that was found is believed
COUNTED_CHARS: Final = 1024 * 1024
# given to a tokenizer at once: some take quadratic time on a text without blanks
PIECE_CHARS: Final = 20_000
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
_PUNCTUATION: Final = frozenset(
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
        """Return the tokens of a request's prompt."""
        if not isinstance(body, dict):
            return 0.0
        tokens = sum(self.text(text) for text in _texts(body))
        messages = body.get("messages")
        tokens += sum(
            len(found) for found in _lists(body) if all(isinstance(one, int) for one in found)
        )
        return tokens + (MESSAGE_TOKENS * (len(messages) + 1) if isinstance(messages, list) else 0)

    def text(self, text: str) -> float:
        """Return the tokens of one text.

        Once a sample of some size was counted, they are estimated from its characters, at the ratio
        of the texts before.
        """
        if self._chars >= COUNTED_CHARS:
            return len(text) * self._tokens / self._chars
        pieces = range(0, len(text), PIECE_CHARS)
        tokens = float(sum(self._encoder(text[start : start + PIECE_CHARS]) for start in pieces))
        self._chars, self._tokens = self._chars + len(text), self._tokens + tokens
        return tokens


def meter_of(model: str | None, tokenizer: str | None = None) -> TokenMeter:
    """Return the meter for the requests of one job.

    Raises ValueError for a ``tokenizer`` that was named and cannot be used.
    """
    if tokenizer is not None:
        place = pinned(tokenizer)
        return TokenMeter(encoder_of(place), f"the tokenizer {place.partition('#')[0]}")
    own = _beside_model(model)
    if own is not None:
        return own
    encoder = None if model is None else _tiktoken(model)
    return TokenMeter() if encoder is None else TokenMeter(encoder[0], f"tiktoken's {encoder[1]}")


def _beside_model(model: str | None) -> TokenMeter | None:
    """Return the meter of a model that is a folder of this machine, with its tokenizer in it."""
    if model is None or not (Path(model) / FILE).is_file():
        return None
    place = Path(model) / FILE
    try:
        return TokenMeter(encoder_of(pinned(str(place))), f"the tokenizer {place}")
    except ValueError:
        return None  # it was not asked for


@lru_cache(maxsize=4)
def _tiktoken(model: str) -> tuple[Encoder, str] | None:
    """Return tiktoken's encoder and its name.

    None unless tiktoken is installed, knows the model, and has its file already: it would fetch
    another one.
    """
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
    """Yield every text inside but for those that say what the others are."""
    if isinstance(value, str):
        yield MEDIA.sub("", value)
    elif isinstance(value, list):
        for one in value:
            yield from _inside(one)
    elif isinstance(value, dict):
        for name, one in value.items():
            if name not in _PUNCTUATION:
                yield from _inside(one)


def _lists(body: dict[str, Any]) -> Iterator[list[Any]]:
    """Yield prompts that are lists of tokens already."""
    for name in ("prompt", "input"):
        value = body.get(name)
        if isinstance(value, list) and value:
            yield from (one for one in [value, *value] if isinstance(one, list) and one)


# what budgets of batches and the rate limiter begin with; a test holds the two together
CHARS_PER_TOKEN: Final = 4.0
DEFAULT_OUTPUT_TOKENS: Final = 256  # the same
MEASURED: Final = 1_000  # documents that an estimate is taken from
MEASURED_BYTES: Final = 64 * 1024 * 1024  # of them: large documents are alike sooner
MTOK: Final = 1_000_000
OUTPUT_MAX: Final = 10**9  # tokens of one answer that are believed; no model comes near
SOUND_BYTES_PER_S: Final = 16_000  # of recordings, for estimates: 128 kbit/s
_SOUND: Final = b'"data:audio/'
ANSWERS_MAX: Final = 1_000  # of one request; providers take 128 at most
TOKENS_MAX: Final = 2**53  # of a whole job: what JSON, SQL and Redis hold
_OUTPUT_FIELDS: Final = (
    "max_completion_tokens",
    "max_tokens",
    "max_output_tokens",
    "maxOutputTokens",
    "maxTokens",
)


class Estimate(NamedTuple):
    """Tokens of all documents."""

    tokens_in: int
    tokens_out: int
    # whether every request says how long its answer may be, so that ``tokens_out`` is the most
    capped: bool
    by: str = CALIBRATED  # what prompts were counted by, for people
    model: str | None = None  # that the first request names, for prices where the job names none
    seconds: float = 0.0  # of recordings, as if all had SOUND_BYTES_PER_S
    # by lane or tier: what the job's rules and the prompt cache make of its own model's cost
    factors: Mapping[str, float] = {}

    def usd(
        self,
        prices: ModelPrices | None,
        *,
        in_batch: bool = False,
        cached: int = 0,
        cache_written: int = 0,
    ) -> float | None:
        """Return the cost in US dollars; None where the price is unknown.

        A long request is not known from the sum: all count as short ones. Of the tokens of prompts
        so many are read from the provider's prompt cache, or written to it, in batches for an hour.
        """
        if prices is None:
            return None
        short = prices.model_copy(update={"long": None})
        for_hour = cache_written if in_batch else 0
        used = TokensUsed(
            self.tokens_in, self.tokens_out, cached, cache_written, cache_written_hour=for_hour
        )
        used = used._replace(seconds=self.seconds)
        return short.microusd(used, in_batch=in_batch) / MTOK


@dataclass(slots=True)
class Measure:
    """Takes the measure of the first documents, and scales it to all."""

    meter: TokenMeter = field(default_factory=TokenMeter)
    documents: int = 0
    size: int = 0  # bytes of their requests
    tokens_in: float = 0.0
    tokens_out: int = 0
    capped: bool = True
    only_text: bool = True  # no image or sound lies in a request
    model: str | None = None  # of the first request
    sound: int = 0  # bytes of recordings

    @property
    def enough(self) -> bool:
        return self.documents >= MEASURED or self.size >= MEASURED_BYTES

    def add(self, body: bytes) -> None:
        request = orjson.loads(body)
        most, choices = output_asked(request), answers_asked(request)
        if (
            not self.documents
            and isinstance(request, dict)
            and isinstance(request.get("model"), str)
        ):
            self.model = request["model"]
        self.documents += 1
        self.size += len(body)
        self.tokens_in += self.meter.prompt(request)
        self.tokens_out += choices * (DEFAULT_OUTPUT_TOKENS if most is None else most)
        self.capped = self.capped and most is not None
        self.sound += sound_bytes(body)
        self.only_text = self.only_text and MEDIA.search(body.decode("utf-8", "replace")) is None

    def of(self, total: int, size: int | None = None) -> Estimate:
        """Estimate the tokens of ``total`` documents like those that were counted.

        Prompts are scaled by the ``size`` of all requests, where that is known and all is text: the
        first documents of a source that is sorted say little of the others.
        """
        if not self.documents:
            return Estimate(0, 0, True, self.meter.by)
        share = total / self.documents
        prompts = share if size is None or not self.only_text else size / self.size
        tokens_in, tokens_out = round(self.tokens_in * prompts), round(self.tokens_out * share)
        most_in, most_out = min(tokens_in, TOKENS_MAX), min(tokens_out, TOKENS_MAX)
        seconds = share * self.sound / SOUND_BYTES_PER_S
        return Estimate(most_in, most_out, self.capped, self.meter.by, self.model, seconds)

    @classmethod
    def taken(cls, bodies: Iterable[bytes], meter: TokenMeter | None = None) -> Measure:
        """Measure all of some bodies."""
        measure = cls(meter or TokenMeter())
        for body in bodies:
            measure.add(body)
        return measure


def sound_bytes(body: bytes) -> int:
    """Return how many bytes of recordings lie in a request."""
    size = at = 0
    while (at := body.find(_SOUND, at)) >= 0:
        end = body.find(b'"', at + 1)
        at, size = end, size + max(0, end - body.find(b",", at, end) - 1) * 3 // 4
        if end < 0:
            break
    return size


def output_asked(body: Any) -> int | None:
    """Return the most tokens that a request lets its answer have.

    None where it does not say, or says what no answer can have. Of several fields that say it the
    largest counts: each API reads its own, and some pass over those that they do not know.
    """
    if not isinstance(body, dict):
        return None
    # where requests to Gemini and to Bedrock say it
    configs = (body.get(name) for name in ("generationConfig", "inferenceConfig"))
    found = [
        fields.get(name)
        for fields in (body, *configs)
        if isinstance(fields, dict)
        for name in _OUTPUT_FIELDS
    ]
    return max((min(most, OUTPUT_MAX) for most in found if _is_number(most)), default=None)


def answers_asked(body: Any) -> int:
    """Return how many answers a request asks for, and pays.

    `best_of` are written, of which `n` are shown, to each of its prompts.
    """
    if not isinstance(body, dict):
        return 1
    config = body.get("generationConfig")
    gemini = config.get("candidateCount") if isinstance(config, dict) else None
    wanted = (body.get("n"), body.get("best_of"), gemini)
    of_each = max((number for number in wanted if _is_number(number)), default=1)
    return min(ANSWERS_MAX, of_each) * _prompts(body.get("prompt"))


def _prompts(given: Any) -> int:
    """Return how many prompts one request for completions has.

    A list of numbers is the tokens of one.
    """
    return len(given) if isinstance(given, list) and given and not isinstance(given[0], int) else 1


def _is_number(value: Any) -> TypeGuard[int]:
    """Return whether this is a whole number above 0; JSON's true is none."""
    return type(value) is int and value > 0
