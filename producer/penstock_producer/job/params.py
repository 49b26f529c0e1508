"""Requests have providers' parameters; an unknown name is matched with what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from penstock_producer.errors import MAX_SEEN_CHARS, Problem, pointer_to, seen

__all__ = [
    "KNOWN",
    "UNKNOWN_MAX",
    "Suggestions",
    "as_sent",
    "close_to",
    "params_of",
    "too_many_unknown",
]

UNKNOWN_MAX: Final = 100  # in one object; who sends more of them has sent something else
# names of one object that are compared with those that exist: each costs about a millisecond
SUGGESTED_MAX: Final = 10
COMPARED_CHARS: Final = 100  # no name that exists has as many


def close_to(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that was probably meant.

    None where none is close, and for a name that is longer than any.
    """
    if len(name) > COMPARED_CHARS:
        return None
    found = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return found[0] if found else None


class Suggestions:
    """The names that were probably meant, for the first ones that are asked about."""

    def __init__(self) -> None:
        self._left = SUGGESTED_MAX

    def close_to(self, name: str, known: Iterable[str]) -> str | None:
        self._left -= 1
        return close_to(name, known) if self._left >= 0 else None


def too_many_unknown(names: Collection[str]) -> Problem | None:
    """Return what is wrong with so many names, before one of them is looked at.

    None where they are few.
    """
    if len(names) <= UNKNOWN_MAX:
        return None
    first = seen(next(iter(names)))
    fix = (
        f"{len(names):,} names are not known here; up to {UNKNOWN_MAX} would be looked at one by "
        "one"
    )
    return Problem("unknown_field", "", f"there is no field {first}", fix)


UNCHECKED: Final = "x."  # `x.NAME` is sent as NAME, whatever it is
_NAMES_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Param:
    """The values of a parameter. ``null`` is always allowed: it means the provider's default."""

    # of `integer`, `number`, `boolean`, `text`, `list`, `object`, `anything`
    kinds: tuple[str, ...]
    least: float | None = None
    most: float | None = None
    among: tuple[str, ...] = ()  # texts that are usable; empty for any

    def fault(self, value: Any) -> tuple[str, str] | None:
        """Return the code and the fix of an unusable value, None for a usable one."""
        if value is None or "anything" in self.kinds:
            return None
        if not any(_is(kind, value) for kind in self.kinds):
            return "invalid_type", f"give {self._wanted()}"
        if self.among and value not in self.among:
            return "invalid_value", f"give {self._wanted()}"
        too_small = self.least is not None and _is("number", value) and value < self.least
        too_large = self.most is not None and _is("number", value) and value > self.most
        return ("invalid_value", f"give {self._wanted()}") if too_small or too_large else None

    def _wanted(self) -> str:
        if self.among:
            return f"one of {', '.join(self.among)}"
        kinds = " or ".join(
            f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}".replace("a text", "text")
            for kind in self.kinds
        )
        if self.least is not None and self.most is not None:
            return f"{kinds} from {self.least:g} to {self.most:g}"
        return kinds if self.least is None else f"{kinds} of at least {self.least:g}"


_COUNT = Param(("integer",), 1)
_NUMBER = Param(("number",))
_BOOLEAN = Param(("boolean",))
_TEXT = Param(("text",))
_LIST = Param(("list",))
_OBJECT = Param(("object",))
_CHOICE = Param(("text", "object"))
_ANYTHING = Param(("anything",))

_COMMON: Final[dict[str, Param]] = {
    "user": _TEXT,
    "metadata": _OBJECT,
    "store": _BOOLEAN,
    "service_tier": _TEXT,
    "safety_identifier": _TEXT,
    "prompt_cache_key": _TEXT,
    "prompt_cache_retention": _TEXT,
}
_SAMPLING: Final[dict[str, Param]] = {
    "temperature": Param(("number",), 0, 2),
    "top_p": Param(("number",), 0, 1),
    "frequency_penalty": Param(("number",), -2, 2),
    "presence_penalty": Param(("number",), -2, 2),
    "max_tokens": _COUNT,
    "n": Param(("integer",), 1, 128),
    "seed": Param(("integer",)),
    "stop": Param(("text", "list")),
    "logit_bias": _OBJECT,
    "response_format": _OBJECT,
    "stream_options": _OBJECT,
}
# Of vLLM's server, which other engines and routers follow.
_ENGINE: Final[dict[str, Param]] = {
    "top_k": Param(("integer",), -1),
    "min_p": Param(("number",), 0, 1),
    "repetition_penalty": Param(("number",), 0),
    "length_penalty": _NUMBER,
    "min_tokens": Param(("integer",), 0),
    "stop_token_ids": _LIST,
    "bad_words": _LIST,
    "ignore_eos": _BOOLEAN,
    "include_stop_str_in_output": _BOOLEAN,
    "skip_special_tokens": _BOOLEAN,
    "spaces_between_special_tokens": _BOOLEAN,
    "truncate_prompt_tokens": Param(("integer",), -1),
    "prompt_logprobs": Param(("integer",), 0),
    "allowed_token_ids": _LIST,
    "use_beam_search": _BOOLEAN,
    "best_of": _COUNT,
    "add_special_tokens": _BOOLEAN,
    "echo": _BOOLEAN,
    "return_token_ids": _BOOLEAN,
    "priority": Param(("integer",)),
    "structured_outputs": _OBJECT,
    "guided_json": _ANYTHING,
    "guided_regex": _TEXT,
    "guided_choice": _LIST,
    "guided_grammar": _TEXT,
    "cache_salt": _TEXT,
    "vllm_xargs": _OBJECT,
    "mm_processor_kwargs": _OBJECT,
}
_CHAT: Final[dict[str, Param]] = {
    **_COMMON,
    **_SAMPLING,
    **_ENGINE,
    "max_completion_tokens": _COUNT,
    "logprobs": _BOOLEAN,
    "top_logprobs": Param(("integer",), 0, 20),
    "tools": _LIST,
    "tool_choice": _CHOICE,
    "parallel_tool_calls": _BOOLEAN,
    "functions": _LIST,
    "function_call": _CHOICE,
    "reasoning_effort": _TEXT,
    "verbosity": _TEXT,
    "modalities": _LIST,
    "audio": _OBJECT,
    "prediction": _OBJECT,
    "web_search_options": _OBJECT,
    "chat_template": _TEXT,
    "chat_template_kwargs": _OBJECT,
    "add_generation_prompt": _BOOLEAN,
    "continue_final_message": _BOOLEAN,
    "documents": _LIST,
    # Anthropic, DeepSeek, OpenRouter, Qwen, Mistral
    "thinking": _OBJECT,
    "reasoning": _OBJECT,
    "include_reasoning": _BOOLEAN,
    "enable_thinking": _BOOLEAN,
    "provider": _OBJECT,
    "models": _LIST,
    "transforms": _LIST,
    "plugins": _LIST,
    "random_seed": Param(("integer",)),
    "safe_prompt": _BOOLEAN,
}
_COMPLETIONS: Final[dict[str, Param]] = {
    **_COMMON,
    **_SAMPLING,
    **_ENGINE,
    "suffix": _TEXT,
    "logprobs": Param(("integer",), 0),
}
_RESPONSES: Final[dict[str, Param]] = {
    **_COMMON,
    "temperature": _SAMPLING["temperature"],
    "top_p": _SAMPLING["top_p"],
    "max_output_tokens": _COUNT,
    "top_logprobs": Param(("integer",), 0, 20),
    "tools": _LIST,
    "tool_choice": _CHOICE,
    "parallel_tool_calls": _BOOLEAN,
    "max_tool_calls": _COUNT,
    "reasoning": _OBJECT,
    "text": _OBJECT,
    "truncation": _TEXT,
    "include": _LIST,
    "previous_response_id": _TEXT,
    "stream_options": _OBJECT,
}
_EMBEDDINGS: Final[dict[str, Param]] = {
    "dimensions": _COUNT,
    "encoding_format": _TEXT,
    "user": _TEXT,
    "input_type": _TEXT,
    "task": _TEXT,
    "truncate": Param(("text", "boolean")),
    "truncation": _BOOLEAN,
    "truncate_prompt_tokens": Param(("integer",), -1),
    "add_special_tokens": _BOOLEAN,
    "output_dtype": _TEXT,
    "output_dimension": _COUNT,
    "embedding_type": Param(("text", "list")),
    "normalize": _BOOLEAN,
    "normalized": _BOOLEAN,
    "late_chunking": _BOOLEAN,
    "priority": Param(("integer",)),
}

_MESSAGES: Final[dict[str, Param]] = {
    "max_tokens": _COUNT,
    "temperature": Param(("number",), 0, 1),
    "top_p": _SAMPLING["top_p"],
    "top_k": Param(("integer",), 0),
    "stop_sequences": _LIST,
    "metadata": _OBJECT,
    "thinking": _OBJECT,
    "tools": _LIST,
    "tool_choice": _OBJECT,
    "service_tier": _TEXT,
    "output_config": _OBJECT,
}

_GENERATE: Final[dict[str, Param]] = {
    "temperature": _SAMPLING["temperature"],
    "topP": _SAMPLING["top_p"],
    "topK": Param(("integer",), 1),
    "maxOutputTokens": _COUNT,
    "stopSequences": _LIST,
    "candidateCount": _COUNT,
    "seed": _SAMPLING["seed"],
    "presencePenalty": _SAMPLING["presence_penalty"],
    "frequencyPenalty": _SAMPLING["frequency_penalty"],
    "responseMimeType": _TEXT,
    "responseSchema": _OBJECT,
    "responseJsonSchema": _OBJECT,
    "thinkingConfig": _OBJECT,
    "serviceTier": _TEXT,
}

# of inferenceConfig, and the fields beside it (botocore, bedrock-runtime, Converse)
_CONVERSE: Final[dict[str, Param]] = {
    "maxTokens": _COUNT,
    "temperature": Param(("number",), 0, 1),
    "topP": _SAMPLING["top_p"],
    "stopSequences": _LIST,
    "toolConfig": _OBJECT,
    "guardrailConfig": _OBJECT,
    "additionalModelRequestFields": _OBJECT,
    "additionalModelResponseFieldPaths": _LIST,
    "requestMetadata": _OBJECT,
    "performanceConfig": _OBJECT,
    "serviceTier": _OBJECT,
    "outputConfig": _OBJECT,
}

_TRANSCRIPTIONS: Final[dict[str, Param]] = {
    "language": _TEXT,
    "languages": _LIST,
    "keywords": _LIST,
    "response_format": Param(("text",), among=("json", "verbose_json", "diarized_json")),
    "temperature": Param(("number",), 0, 1),
    "timestamp_granularities": _LIST,
    "include": _LIST,
    "chunking_strategy": _CHOICE,
    "known_speaker_names": _LIST,
    "known_speaker_references": _LIST,
}
_IMAGES: Final[dict[str, Param]] = {
    "background": _TEXT,
    "input_fidelity": _TEXT,
    "moderation": _TEXT,
    "n": Param(("integer",), 1, 10),
    "output_compression": Param(("integer",), 0, 100),
    "output_format": _TEXT,
    "quality": _TEXT,
    "response_format": Param(("text",), among=("url", "b64_json")),
    "size": _TEXT,
    "style": _TEXT,
    "user": _TEXT,
}

_BY_ENDPOINT: Final[dict[str, Mapping[str, Param]]] = {
    "/chat/completions": _CHAT,
    "/messages": _MESSAGES,
    "/generateContent": _GENERATE,
    "/converse": _CONVERSE,
    "/completions": _COMPLETIONS,
    "/responses": _RESPONSES,
    "/embeddings": _EMBEDDINGS,
    "/audio/transcriptions": _TRANSCRIPTIONS,
    "/images/generations": _IMAGES,
    "/images/edits": _IMAGES,
}
_FIELDS_OF_THE_BODY: Final = frozenset(
    {"model", "messages", "input", "prompt", "instructions", "system"}
)
KNOWN: Final = frozenset().union(*_BY_ENDPOINT.values())


def params_of(endpoint: str) -> Mapping[str, Param] | None:
    """Return the parameters of this endpoint's requests; None for one that is not listed here."""
    return next((params for end, params in _BY_ENDPOINT.items() if endpoint.endswith(end)), None)


def param_problems(
    given: Mapping[str, Any], endpoint: str, pointer: str = "/params"
) -> Iterable[Problem]:
    """Yield everything that is wrong with the parameters of a job, or of a replay."""
    known, suggestions = params_of(endpoint), Suggestions()
    for name, value in given.items():
        at = pointer + pointer_to(name)
        if name.removeprefix(UNCHECKED) == "stream":
            if value:
                yield Problem(
                    "streaming_unsupported",
                    at,
                    "results are stored whole, not streamed",
                    "remove it",
                )
        elif name.removeprefix(UNCHECKED) in _FIELDS_OF_THE_BODY:
            yield Problem(
                "invalid_value",
                at,
                f"{name} is not a parameter",
                "use the model and prompt of the job",
            )
        elif not name.removeprefix(UNCHECKED):
            yield Problem(
                "invalid_value",
                at,
                f"{seen(name)} is not the name of a parameter",
                "write its name after x.",
            )
        elif name.startswith(UNCHECKED) or known is None:
            continue
        elif name not in known:
            yield Problem(
                "unknown_parameter",
                at,
                f"{endpoint} has no parameter {seen(name)} that is known here",
                _fix(name, known, suggestions),
            )
        else:
            fault = known[name].fault(value)
            if fault is not None:
                yield Problem(fault[0], at, f"{seen(value)} is refused", fault[1])


def param_name_problems(names: Iterable[str], endpoint: str, pointer: str) -> Iterable[Problem]:
    """Return what is wrong with parameters whose values come with each document."""
    return param_problems(
        {name: name.removeprefix(UNCHECKED) == "stream" or None for name in names},
        endpoint,
        pointer,
    )


def value_fault(name: str, value: Any, endpoint: str) -> str | None:
    """Return the fix for a value that no request could be sent with; None for a usable one."""
    known = params_of(endpoint)
    if name.startswith(UNCHECKED) or known is None or name not in known:
        return None
    fault = known[name].fault(value)
    return None if fault is None else fault[1]


def read_from_column(name: str, value: Any, endpoint: str) -> Any:
    """Return a column's value for a parameter.

    CSV has only texts: one is read as JSON where the parameter takes no text.
    """
    known = params_of(endpoint)
    if (
        not isinstance(value, str)
        or known is None
        or name not in known
        or known[name].fault(value) is None
    ):
        return value
    if not value.strip():
        return None  # an empty cell
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def as_sent(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters as requests carry them, those not checked without their prefix."""
    return {name.removeprefix(UNCHECKED): value for name, value in given.items()}


def _fix(name: str, known: Mapping[str, Param], suggestions: Suggestions) -> str:
    close = suggestions.close_to(name, [*known, *_FIELDS_OF_THE_BODY])
    meant = (
        f"did you mean {close!r}?"
        if close is not None
        else f"known are {', '.join(sorted(known)[:_NAMES_SHOWN])}, …;"
    )
    return f"{meant} One of your provider's own is written {UNCHECKED}{name[:MAX_SEEN_CHARS]}"


def _is(kind: str, value: Any) -> bool:
    match kind:
        case "integer":
            return type(value) is int
        case "number":
            return type(value) is int or (type(value) is float and value == value)
        case "boolean":
            return type(value) is bool
        case "text":
            return isinstance(value, str)
        case "list":
            return isinstance(value, list)
        case _:
            return isinstance(value, dict)
