"""What a document may not bring: a chat template of its own, and tokens that the model does not
have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock_workers.lanes.gpu.engine.engines import RequestRefused
from penstock_workers.lanes.shown import shown

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
    """Raises RequestRefused where the document brings its own chat template, by whatever name."""
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
    """``tokens`` if each is one of the model's. Raises RequestRefused."""
    for place, token in enumerate(tokens):
        if type(token) is not int or not 0 <= token < vocabulary:
            raise RequestRefused(
                f"{field}[{place}] is {shown(token)}: token ids of this model are integers from 0 "
                f"to {vocabulary - 1}"
            )
    return tokens


def check_named_tokens(body: Mapping[str, Any], vocabulary: int) -> None:
    """The tokens that sampling parameters name. Raises RequestRefused."""
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
                f"logit_bias[{token}] is {shown(bias)}: give a number from -{BIAS_MOST} to "
                f"{BIAS_MOST}"
            )
