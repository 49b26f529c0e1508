"""One request as the provider reads it, or the refusal of one that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from penstock_simulate.answers import bedrock, cached_contents, gemini, media, messages, refusals
from penstock_simulate.answers.answers import (
    EMBEDDING_DIMENSIONS,
    MAX_EMBEDDING_DIMENSIONS,
    chars_per_token,
    cut_answer,
    last_of,
    prompt_of,
    tokens_of,
    write_answer,
)
from penstock_simulate.answers.cached_contents import KeptContent
from penstock_simulate.answers.prompt_cache import (
    LEAST_OF_GEMINI,
    LEAST_TOKENS,
    NO_CACHE,
    CacheUse,
    Prefix,
    prefixes,
    prefixes_of_chat,
    steps_of,
)
from penstock_simulate.answers.refusals import Refusal
from penstock_simulate.choices import Mode
from penstock_simulate.limits import Charge, charge
from penstock_simulate.reply import STANDARD_TIER

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
MESSAGES = "/v1/messages"  # Anthropic's
GENERATE = ":generateContent"  # Gemini's, behind the name of a model
CONVERSE = "/converse"  # Bedrock's, likewise
# what tokens cost in a service tier, as a part of the ordinary price
FLEX_TIER: Final = "flex"
TIER_PRICES: Final[Mapping[str, float]] = {FLEX_TIER: 0.5, "priority": 2.0}
_TIER_FIELDS: Final = {CHAT: "service_tier", GENERATE: "serviceTier"}
MAX_INPUTS = 2048  # texts of one embeddings request, as at OpenAI


@dataclass(slots=True)
class Call:
    """One request and its identity.

    ``tag`` names the document in the accounts, ``document`` decides its luck."""

    endpoint: str
    raw: bytes
    authorization: str | None
    tag: str
    number: int  # among the calls of this tag, from 1
    document: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""  # known beforehand where the path names it
    streams: bool = False  # known from the path; other APIs say so in the body
    prompt_tokens: int = 0
    texts: list[str] = field(default_factory=list)  # the prompt, or what to embed
    fault: Refusal | None = None  # of its headers
    prefixes: Sequence[Prefix] = ()  # of the prompt, that may be cached
    cache: CacheUse = NO_CACHE
    kept: Mapping[str, KeptContent] = field(default_factory=dict)  # explicit caches, by their names
    named: CacheUse | None = None  # of an explicit cache that it names
    host: str = ""  # the name that the client called us by
    declines: bool = False  # whether the answer is a polite no
    _answer: tuple[str, str] | None = None

    @property
    def priority(self) -> int:
        """Its place in a queue by priority: lower first, as vLLM has it."""
        asked = self.body.get("priority")
        return asked if type(asked) is int else 0

    @property
    def tier(self) -> str:
        """The service tier that it is answered in: the one that it asks for, where that is sold."""
        asked = self.body.get(_TIER_FIELDS.get(self.endpoint, ""))
        return asked if isinstance(asked, str) and asked in TIER_PRICES else STANDARD_TIER

    @property
    def price(self) -> float:
        """The part of the ordinary price that its tokens cost."""
        return TIER_PRICES.get(self.tier, 1.0)

    def answer(self) -> tuple[str, str]:
        """Return what the model says and the finish reason, worked out once."""
        if self._answer is None:
            self._answer = ("", "refusal") if self.declines else self._written()
        return self._answer

    def _written(self) -> tuple[str, str]:
        body = self.body
        if self.endpoint == MESSAGES:
            text = write_answer(
                {**messages.wanted(body), "model": self.model}, last_of(body, self.texts[0])
            )
            return messages.cut(body, *cut_answer(text, _max_tokens(body)))
        if (api := _APART.get(self.endpoint)) is not None:
            return cut_answer(
                write_answer({**api.wanted(body), "model": self.model}, api.last_of(body)),
                api.max_tokens(body),
            )
        return cut_answer(write_answer(body, last_of(body, self.texts[0])), _max_tokens(body))

    def output_tokens(self) -> int:
        if self.endpoint in media.MEDIA:
            return media.answer(self.endpoint, self.body, "")[1].completion
        return 0 if self.endpoint == EMBEDDINGS else tokens_of(self.answer()[0])

    def most_output_tokens(self, unset: int) -> int:
        """Return what `max_tokens` allows, or ``unset`` where the request does not name it."""
        if self.endpoint == EMBEDDINGS:
            return 0
        api = _APART.get(self.endpoint)
        most = _max_tokens(self.body) if api is None else api.max_tokens(self.body)
        return unset if most is None else most


_APART = {GENERATE: gemini, CONVERSE: bedrock}
"""APIs that have parameters in a field of their own."""


def at_admission(mode: Mode, call: Call, unset_max_tokens: int) -> Charge:
    """Return what the call is charged before it starts.

    ``unset_max_tokens`` is reserved for one that names no maximum."""
    # what is read from Anthropic's cache does not count
    read = call.cache.read if call.endpoint == MESSAGES else 0
    prompt = call.prompt_tokens - read
    match mode:
        case Mode.ACTUAL:
            return charge(1, prompt, call.output_tokens())
        case Mode.PRODUCED | Mode.INPUT:
            return charge(1, prompt, 0)
        case _:
            return charge(1, prompt, call.most_output_tokens(unset_max_tokens))


def unreadable(call: Call) -> Refusal | None:
    """Fill in what the request says, or refuse it as the provider would."""
    if call.fault is not None:
        return call.fault
    try:
        body = orjson.loads(call.raw)
    except orjson.JSONDecodeError as error:
        return refusals.invalid(f"We could not parse the JSON body of your request: {error}")
    return misshapen(call, body, streams=call.endpoint in (CHAT, COMPLETIONS, MESSAGES))


def misshapen(call: Call, body: object, *, streams: bool = False) -> Refusal | None:
    """Return what is wrong with a body that is read already, as `unreadable` does.

    ``streams`` says whether its answer may come as events: those of batches do not."""
    if not isinstance(body, dict):
        return refusals.invalid("The body of your request must be a JSON object.")
    call.body, model = body, call.model or body.get("model")
    if not isinstance(model, str) or not model:
        return refusals.invalid("you must provide a model parameter", "model")
    call.model = model
    if body.get("stream") and not streams:
        return refusals.invalid("This request cannot be streamed: leave stream out.", "stream")
    return _PROMPTS.get(call.endpoint, _prompt)(call)


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    most = body.get("max_completion_tokens", body.get("max_tokens"))
    return most if isinstance(most, int) and not isinstance(most, bool) else None


def _prompt(call: Call) -> Refusal | None:
    field_name = "messages" if call.endpoint == CHAT else "prompt"
    given = call.body.get(field_name)
    usable = (
        isinstance(given, list) and given and all(isinstance(message, dict) for message in given)
    )
    if not (usable if call.endpoint == CHAT else isinstance(given, str)):
        return refusals.invalid(f"Missing or unusable parameter: '{field_name}'.", field_name)
    most = call.body.get("max_completion_tokens", call.body.get("max_tokens"))
    if most is not None and (_max_tokens(call.body) is None or most < 1):
        return refusals.invalid(f"Invalid value for max_tokens: {most!r}.", "max_tokens")
    call.texts = [prompt_of(call.body)]
    call.prompt_tokens = max(1, tokens_of(call.texts[0]))
    if call.prompt_tokens >= LEAST_TOKENS and call.endpoint == CHAT:
        call.prefixes = prefixes_of_chat(call.model, call.body)
    return None


def _message_prompt(call: Call) -> Refusal | None:
    refusal = messages.refusal_of(call.body)
    if refusal is None:
        parts = list(messages.segments(call.body))
        call.texts, call.prefixes = [messages.text_of(parts)], prefixes(parts)
        call.prompt_tokens = max(
            1, int(sum(len(part.text) for part in parts) // chars_per_token(call.texts[0]))
        )
    return refusal


def _generate_prompt(call: Call) -> Refusal | None:
    refusal = gemini.refusal_of(call.body)
    if refusal is None and "cachedContent" in call.body:
        return _behind_cache(call)
    if refusal is None:
        call.texts = [gemini.text_of(call.body)]
        call.prompt_tokens = max(1, tokens_of(call.texts[0]))
        call.prefixes = steps_of(call.model, call.texts[0], LEAST_OF_GEMINI)
    return refusal


def _behind_cache(call: Call) -> Refusal | None:
    """Read a request whose beginning is an explicit cache, which is read for sure."""
    kept = call.kept.get(str(call.body["cachedContent"]))
    if (refusal := cached_contents.refusal_of(call.body, kept, call.model)) is not None:
        return refusal
    assert kept is not None, "one that is not there is refused"
    call.texts = [gemini.text_of(call.body)]
    call.prompt_tokens = kept.tokens + max(1, tokens_of(call.texts[0]))
    call.named = CacheUse(read=kept.tokens)
    return None


def _converse_prompt(call: Call) -> Refusal | None:
    refusal = bedrock.refusal_of(call.body)
    if refusal is None:
        call.texts = [bedrock.text_of(call.body)]
        call.prompt_tokens = max(1, tokens_of(call.texts[0]))
    return refusal


def _embedding_texts(call: Call) -> Refusal | None:
    given = call.body.get("input")
    if given is None and call.body.get("messages"):  # of images, as vLLM takes them: one input
        given = orjson.dumps(call.body["messages"]).decode()
    texts: list[Any] = given if isinstance(given, list) else [given]
    if not 0 < len(texts) <= MAX_INPUTS or not all(
        isinstance(text, str) and text for text in texts
    ):
        return refusals.invalid(
            f"'input' must be a text or 1 to {MAX_INPUTS} texts, none of them empty.", "input"
        )
    dimensions = call.body.get("dimensions", EMBEDDING_DIMENSIONS)
    if not isinstance(dimensions, int) or not 1 <= dimensions <= MAX_EMBEDDING_DIMENSIONS:
        return refusals.invalid(
            f"'dimensions' must be between 1 and {MAX_EMBEDDING_DIMENSIONS}.", "dimensions"
        )
    call.texts = texts
    call.prompt_tokens = sum(tokens_of(text) for text in texts)
    return None


def _media_request(call: Call) -> Refusal | None:
    refusal = media.refusal_of(call.endpoint, call.body)
    if refusal is None:
        call.prompt_tokens = media.tokens_in(call.endpoint, call.body)
    return refusal


_PROMPTS: Mapping[str, Callable[[Call], Refusal | None]] = {
    EMBEDDINGS: _embedding_texts,
    MESSAGES: _message_prompt,
    GENERATE: _generate_prompt,
    CONVERSE: _converse_prompt,
    **dict.fromkeys(media.MEDIA, _media_request),
}
