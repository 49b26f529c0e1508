"""The types of what a request asks for, checked before the engine has it: some wrong ones end an
engine, others are 500s."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from penstock_workers.lanes.gpu.engine.engines import RequestRefused
from penstock_workers.lanes.shown import shown

CHOICES_MAX: Final = 128  # answers to one request, as at OpenAI: each takes a place in the engine
INT32: Final = 2**31 - 1
INT64: Final = 2**63 - 1


class Kind(NamedTuple):
    """What a field may hold, in words and as a test."""

    words: str
    fits: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_whole(most: int, least: int | None = None) -> Callable[[Any], bool]:
    return lambda value: (
        type(value) is int and (-most - 1 if least is None else least) <= value <= most
    )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


_NUMBER = Kind("a number", _is_number)
_WHOLE = Kind("an integer of 32 bits", _is_whole(INT32))
_SWITCH = Kind("true or false", lambda value: isinstance(value, bool))
_TEXTS = Kind("a list of texts", _are_texts)
_OBJECT = Kind("an object", lambda value: isinstance(value, dict))

KINDS: Final[Mapping[str, Kind]] = {
    "model": Kind("a text", lambda value: isinstance(value, str)),
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "min_p": _NUMBER,
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "repetition_penalty": _NUMBER,
    "top_k": _WHOLE,
    "min_tokens": _WHOLE,
    "top_logprobs": _WHOLE,
    "seed": Kind("an integer of 64 bits", _is_whole(INT64)),
    "n": Kind(f"an integer from 1 to {CHOICES_MAX}", _is_whole(CHOICES_MAX, 1)),
    "logprobs": Kind(
        "true, false or an integer", lambda value: isinstance(value, bool) or _WHOLE.fits(value)
    ),
    "stop": Kind(
        "a text or a list of texts", lambda value: isinstance(value, str) or _are_texts(value)
    ),
    "bad_words": _TEXTS,
    "ignore_eos": _SWITCH,
    "skip_special_tokens": _SWITCH,
    "include_stop_str_in_output": _SWITCH,
    "add_generation_prompt": _SWITCH,
    "continue_final_message": _SWITCH,
    "parallel_tool_calls": _SWITCH,
    "structured_outputs": _OBJECT,
    "response_format": _OBJECT,
    "reasoning_effort": Kind("a text", lambda value: isinstance(value, str)),
    "dimensions": Kind("a positive integer", _is_whole(INT32, 1)),
    "encoding_format": Kind("float or base64", lambda value: value in ("float", "base64")),
}


def check_types(body: Mapping[str, Any]) -> None:
    """Raises RequestRefused for the first field that holds what it cannot, with the value and what
    it may hold."""
    for name, value in body.items():
        kind = KINDS.get(name)
        if kind is not None and value is not None and not kind.fits(value):
            raise RequestRefused(f"{name} is {shown(value)}: give {kind.words}")
