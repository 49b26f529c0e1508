"""Checks the fields of a request before the engine has it.

Some wrong types end an engine, others are answered with 500. A document may not bring a chat
template of its own, nor tokens that the model does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from penstock_producer.errors import seen
from penstock_workers.lanes.gpu.engine.engines import RequestRefused

CHOICES_MAX: Final = 128  # answers to one request, as at OpenAI: each takes a place in the engine
INT32: Final = 2**31 - 1
INT64: Final = 2**63 - 1


class Kind(NamedTuple):
    """The content that a field may hold, in words and as a test."""

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
_COUNT = Kind("an integer of at least 0", _is_whole(INT32, 0))
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
    "top_logprobs": _COUNT,
    "seed": Kind("an integer of 64 bits", _is_whole(INT64)),
    "n": Kind(f"an integer from 1 to {CHOICES_MAX}", _is_whole(CHOICES_MAX, 1)),
    "logprobs": Kind(
        f"true, false or {_COUNT.words}",
        lambda value: isinstance(value, bool) or _COUNT.fits(value),
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
    """Check the type of each field.

    Raises RequestRefused for the first field that holds what it cannot, with the value and what it
    may hold.
    """
    for name, value in body.items():
        kind = KINDS.get(name)
        if kind is not None and value is not None and not kind.fits(value):
            raise RequestRefused(f"{name} is {seen(value)}: give {kind.words}")


# Arguments of the tokenizer itself. A template is a program, which would run in the worker; the
# others change what it gives.
_NOT_FOR_TEMPLATES: Final = frozenset(
    {
        "chat_template",
        "conversation",
        "tools",
        "documents",
        "tokenize",
        "add_generation_prompt",
        "continue_final_message",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "tokenizer_kwargs",
    }
)
# as at OpenAI: it allows or bans a token for good, and a larger one makes sums that are no number
BIAS_MOST: Final = 100
_TOKEN_LISTS: Final = ("stop_token_ids", "allowed_token_ids")


def refuse_templates(body: Mapping[str, Any]) -> None:
    """Refuse a document that brings its own chat template, by whatever name.

    Raises RequestRefused."""
    if body.get("chat_template") is not None:
        raise RequestRefused(
            "chat_template: a document may not bring its own; the model's is used. Leave it out"
        )
    given = body.get("chat_template_kwargs")
    if given is None:
        return
    if not isinstance(given, dict):
        raise RequestRefused(
            f"chat_template_kwargs is {type(given).__name__}: give an object of the template's "
            "variables"
        )
    reserved = sorted(given.keys() & _NOT_FOR_TEMPLATES)
    if reserved:
        raise RequestRefused(
            f"chat_template_kwargs: {', '.join(map(repr, reserved))} may not be set by a document; "
            "leave it out"
        )


def check_tokens(tokens: list[Any], field: str, vocabulary: int) -> list[int]:
    """Return ``tokens`` if each is one of the model's.

    Raises RequestRefused."""
    for place, token in enumerate(tokens):
        if type(token) is not int or not 0 <= token < vocabulary:
            raise RequestRefused(
                f"{field}[{place}] is {seen(token)}: token ids of this model are integers from 0 "
                f"to {vocabulary - 1}"
            )
    return tokens


def check_named_tokens(body: Mapping[str, Any], vocabulary: int) -> None:
    """Check the tokens that sampling parameters name.

    Raises RequestRefused."""
    for name in _TOKEN_LISTS:
        tokens = body.get(name)
        if tokens is not None and not isinstance(tokens, list):
            raise RequestRefused(f"{name} is {type(tokens).__name__}: give a list of token ids")
        check_tokens(tokens or [], name, vocabulary)
    biases = body.get("logit_bias")
    if biases is None:
        return
    if not isinstance(biases, dict):
        raise RequestRefused(
            f"logit_bias is {type(biases).__name__}: give an object from token ids to numbers"
        )
    for token, bias in biases.items():
        if not (
            token.isascii() and token.isdecimal() and len(token) < 20 and int(token) < vocabulary
        ):
            raise RequestRefused(
                f"logit_bias: {token[:40]!r} is not a token id of this model: 0 to {vocabulary - 1}"
            )
        if type(bias) not in (int, float) or not -BIAS_MOST <= bias <= BIAS_MOST:
            raise RequestRefused(
                f"logit_bias[{token}] is {seen(bias)}: give a number from -{BIAS_MOST} to "
                f"{BIAS_MOST}"
            )
