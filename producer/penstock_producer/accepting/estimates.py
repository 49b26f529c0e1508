"""What a job may come to, guessed from its first documents: for people before they spend, and for
its budget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeGuard

import orjson

from penstock_producer.accepting.token_meter import MEDIA, TokenMeter
from penstock_producer.prices.token_prices import ModelPrices, TokensUsed
from penstock_producer.prompts.script_tokens import CALIBRATED

__all__ = [
    "CHARS_PER_TOKEN",
    "DEFAULT_OUTPUT_TOKENS",
    "MTOK",
    "Estimate",
    "Measure",
    "answers_asked",
    "output_asked",
]

CHARS_PER_TOKEN: Final = (
    4.0  # what budgets of batches and the rate limiter begin with; a test holds the two together
)
DEFAULT_OUTPUT_TOKENS: Final = 256  # the same
MEASURED: Final = 1_000  # documents that an estimate is taken from
MEASURED_BYTES: Final = 64 * 1024 * 1024  # of them: large documents are alike sooner
MTOK: Final = 1_000_000
OUTPUT_MAX: Final = 10**9  # tokens of one answer that are believed; no model comes near
ANSWERS_MAX: Final = 1_000  # of one request; providers take 128 at most
TOKENS_MAX: Final = 2**53  # of a whole job: what JSON, SQL and Redis hold
_OUTPUT_FIELDS: Final = (
    "max_completion_tokens",
    "max_tokens",
    "max_output_tokens",
    "maxOutputTokens",
)


class Estimate(NamedTuple):
    """Tokens of all documents."""

    tokens_in: int
    tokens_out: int
    # whether every request says how long its answer may be, so that ``tokens_out`` is the most
    capped: bool
    by: str = CALIBRATED  # what prompts were counted by, for people
    model: str | None = None  # that the first request names, for prices where the job names none

    def usd(self, prices: ModelPrices | None, *, in_batch: bool = False) -> float | None:
        """None where the price is unknown.

        A long request is not known from the sum: all count as short ones."""
        if prices is None:
            return None
        short = prices.model_copy(update={"long": None})
        return short.microusd(TokensUsed(self.tokens_in, self.tokens_out), in_batch=in_batch) / MTOK


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
        self.only_text = self.only_text and MEDIA.search(body.decode("utf-8", "replace")) is None

    def of(self, total: int, size: int | None = None) -> Estimate:
        """For ``total`` documents like those; prompts by the ``size`` of all requests, where that
        is known and all is text: the first documents of a source that is sorted say little of the
        others."""
        if not self.documents:
            return Estimate(0, 0, True, self.meter.by)
        share = total / self.documents
        prompts = share if size is None or not self.only_text else size / self.size
        tokens_in, tokens_out = round(self.tokens_in * prompts), round(self.tokens_out * share)
        most_in, most_out = min(tokens_in, TOKENS_MAX), min(tokens_out, TOKENS_MAX)
        return Estimate(most_in, most_out, self.capped, self.meter.by, self.model)

    @classmethod
    def taken(cls, bodies: Iterable[bytes], meter: TokenMeter | None = None) -> Measure:
        """Of all of them."""
        measure = cls(meter or TokenMeter())
        for body in bodies:
            measure.add(body)
        return measure


def output_asked(body: Any) -> int | None:
    """The most tokens that a request lets its answer have; None where it does not say, or says what
    no answer can have.

    Of several fields that say it the largest: each API reads its own, and some pass over those that
    they do not know."""
    if not isinstance(body, dict):
        return None
    config = body.get("generationConfig")  # where requests to Gemini say it
    found = [
        fields.get(name)
        for fields in (body, config)
        if isinstance(fields, dict)
        for name in _OUTPUT_FIELDS
    ]
    return max((min(most, OUTPUT_MAX) for most in found if _is_number(most)), default=None)


def answers_asked(body: Any) -> int:
    """How many answers a request asks for, and pays: `best_of` are written, of which `n` are shown,
    to each of its prompts."""
    if not isinstance(body, dict):
        return 1
    config = body.get("generationConfig")
    gemini = config.get("candidateCount") if isinstance(config, dict) else None
    wanted = (body.get("n"), body.get("best_of"), gemini)
    of_each = max((number for number in wanted if _is_number(number)), default=1)
    return min(ANSWERS_MAX, of_each) * _prompts(body.get("prompt"))


def _prompts(given: Any) -> int:
    """In one request for completions; a list of numbers is the tokens of one."""
    return len(given) if isinstance(given, list) and given and not isinstance(given[0], int) else 1


def _is_number(value: Any) -> TypeGuard[int]:
    """JSON's true is none."""
    return type(value) is int and value > 0
