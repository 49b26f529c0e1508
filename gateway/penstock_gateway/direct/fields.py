"""The body of a call may have the fields that its endpoint lists, and no other.

A field that is passed on unseen may mean something to a server behind this one: where to send the
request, or with which key. So everything that is not named here is refused by its name, inside
messages and tools as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from penstock_gateway.bodies import checked_metadata
from penstock_gateway.refused import Refused
from penstock_gateway.settings import DirectFields
from penstock_producer.job.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES
from penstock_producer.job.params import params_of

__all__ = [
    "Stream",
    "checked_body",
    "invalid",
    "stream_of",
    "unsupported",
    "with_messages",
]

MODEL_CHARS: Final = 512  # as long as a job's model may be
MESSAGES_MAX: Final = 2_048
PARTS_MAX: Final = 512  # of one message
INPUTS_MAX: Final = 2_048  # of one call for embeddings, as OpenAI has it
TOOLS_MAX: Final = 128  # as OpenAI has it
SHOWN_CHARS: Final = 80  # of a name in an error

_SAMPLING: Final = {
    "model",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "n",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "user",
}
# What vLLM's server has besides, as far as the gpu lane takes it: none of it names a place or a
# key.
_OF_ENGINES: Final = {
    "allowed_token_ids",
    "bad_words",
    "ignore_eos",
    "include_stop_str_in_output",
    "min_p",
    "min_tokens",
    "repetition_penalty",
    "skip_special_tokens",
    "stop_token_ids",
    "structured_outputs",
    "top_k",
}
_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    CHAT: frozenset(
        {
            *_SAMPLING,
            *_OF_ENGINES,
            "messages",
            "add_generation_prompt",
            "audio",
            "chat_template_kwargs",
            "continue_final_message",
            "function_call",
            "functions",
            "max_completion_tokens",
            "metadata",
            "modalities",
            "parallel_tool_calls",
            "prediction",
            "prompt_cache_key",
            "prompt_cache_retention",
            "reasoning_effort",
            "response_format",
            "safety_identifier",
            "service_tier",
            "store",
            "tool_choice",
            "tools",
            "top_logprobs",
            "verbosity",
            "web_search_options",
        }
    ),
    COMPLETIONS: frozenset({*_SAMPLING, *_OF_ENGINES, "prompt", "best_of", "echo", "suffix"}),
    EMBEDDINGS: frozenset({"model", "input", "dimensions", "encoding_format", "user"}),
    MESSAGES: frozenset(
        {
            "model",
            "messages",
            "cache_control",
            "max_tokens",
            "metadata",
            "output_config",
            "service_tier",
            "stop_sequences",
            "stream",
            "system",
            "temperature",
            "thinking",
            "tool_choice",
            "tools",
            "top_k",
            "top_p",
        }
    ),
    # Without `previous_response_id`, `conversation` and `prompt`: what they name at the provider
    # belongs to the caller that made it, and the account is that of all tenants here.
    RESPONSES: frozenset(
        {
            "model",
            "input",
            "background",
            "include",
            "instructions",
            "max_output_tokens",
            "metadata",
            "parallel_tool_calls",
            "prompt_cache_key",
            "prompt_cache_retention",
            "reasoning",
            "safety_identifier",
            "service_tier",
            "store",
            "stream",
            "stream_options",
            "temperature",
            "text",
            "tool_choice",
            "tools",
            "top_logprobs",
            "top_p",
            "truncation",
            "user",
        }
    ),
}
_ROLES: Final[Mapping[str, frozenset[str]]] = {
    CHAT: frozenset({"system", "developer", "user", "assistant", "tool", "function"}),
    MESSAGES: frozenset({"user", "assistant"}),
}
# Inside messages, tools and the like: everything that Anthropic's API has there and names no place
# but that of an image.
_OF_MESSAGES: Final = frozenset(
    {
        "budget_tokens",
        "cache_control",
        "citations",
        "content",
        "context",
        "data",
        "description",
        "disable_parallel_tool_use",
        "display",
        "effort",
        "enabled",
        "format",
        "id",
        "input",
        "input_schema",
        "is_error",
        "media_type",
        "name",
        "role",
        "schema",
        "signature",
        "source",
        "strict",
        "text",
        "thinking",
        "title",
        "tool_use_id",
        "ttl",
        "type",
        "url",
        "user_id",
    }
)
# The same of OpenAI's Responses.
_OF_RESPONSES: Final = frozenset(
    {
        "annotations",
        "arguments",
        "call_id",
        "content",
        "description",
        "detail",
        "effort",
        "encrypted_content",
        "file_data",
        "filename",
        "format",
        "id",
        "image_url",
        "logprobs",
        "name",
        "output",
        "parameters",
        "phase",
        "refusal",
        "role",
        "schema",
        "status",
        "strict",
        "summary",
        "text",
        "type",
        "verbosity",
    }
)
# The same of OpenAI's chat.
_NESTED: Final = frozenset(
    {
        "role",
        "content",
        "name",
        "refusal",
        "tool_calls",
        "tool_call_id",
        "function_call",
        "annotations",
        "reasoning_content",
        "type",
        "text",
        "image_url",
        "input_audio",
        "file",
        "url",
        "detail",
        "data",
        "format",
        "file_data",
        "file_id",
        "filename",
        "id",
        "index",
        "function",
        "arguments",
        "custom",
        "input",
        "description",
        "parameters",
        "strict",
        "grammar",
        "definition",
        "syntax",
        "json_schema",
        "schema",
        "voice",
        "mode",
        "tools",
        "allowed_tools",
        "search_context_size",
        "user_location",
        "approximate",
        "city",
        "country",
        "region",
        "timezone",
        "cache_control",
        "extra_content",
        "google",
        "thought_signature",
    }
)
_KNOWN_IN: Final[Mapping[str, frozenset[str]]] = {
    MESSAGES: _OF_MESSAGES,
    RESPONSES: _OF_RESPONSES,
}
# JSON schemas, a chat template's variables, and names of the caller's own.
_FREE: Final = frozenset(
    {"parameters", "schema", "logit_bias", "metadata", "chat_template_kwargs", "structured_outputs"}
)
_FREE_IN: Final[Mapping[str, frozenset[str]]] = {
    MESSAGES: frozenset({"schema", "input_schema", "input"}),
    RESPONSES: frozenset({"schema", "parameters", "metadata"}),
}
_CAPPED: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")


# what it is in (a path, or None for the body), and its name or number there
Path = tuple[Any, str | int]


def checked_body(given: Mapping[str, Any], endpoint: str, limits: DirectFields) -> dict[str, Any]:
    """Return the body as it is sent. Raises Refused (400), which names the field.

    Whether it is streamed to the caller says ``stream_of``: the worker asks its provider for that.
    """
    _check_names(given, _FIELDS[endpoint] | set(limits.extra_fields), endpoint)
    body = {name: value for name, value in given.items() if name not in _OF_STREAMS}
    _check_model(body.get("model"))
    if endpoint in _ROLES:
        _check_messages(body.get("messages"), _ROLES[endpoint])
    elif endpoint == RESPONSES:
        _check_items(body.get("input"))
    else:
        name = "prompt" if endpoint == COMPLETIONS else "input"
        _check_inputs(body.get(name), name)
    _check_values(body, endpoint, limits)
    free = _FREE_IN.get(endpoint, _FREE)
    _check_nested(
        {name: value for name, value in body.items() if name not in free},
        _KNOWN_IN.get(endpoint, _NESTED) | set(limits.extra_fields) | body.keys(),
        free,
    )
    return body


class Stream(NamedTuple):
    """A caller's wish for the answer as events."""

    with_usage: bool


def stream_of(given: Mapping[str, Any]) -> Stream | None:
    """Return how a call is streamed; None where it is not. Raises Refused (400)."""
    wanted, options = given.get("stream"), given.get("stream_options")
    if wanted is not None and not isinstance(wanted, bool):
        raise invalid("stream", "give true or false", "invalid_type")
    if options is None:
        return Stream(with_usage=False) if wanted else None
    if not wanted:
        raise invalid("stream_options", "it is for `stream: true` alone")
    if not isinstance(options, dict):
        raise invalid("stream_options", "give an object", "invalid_type")
    for name, value in options.items():
        place = f"stream_options.{name[:SHOWN_CHARS]}"
        if name not in _STREAM_OPTIONS:
            raise unsupported(place, f"those here are {', '.join(_STREAM_OPTIONS)}")
        if value is not None and not isinstance(value, bool):
            raise invalid(place, "give true or false", "invalid_type")
    return Stream(with_usage=bool(options.get("include_usage")))


_OF_STREAMS: Final = ("stream", "stream_options")
# The second asks for noise that hides the lengths of tokens: it is taken, and there is none.
_STREAM_OPTIONS: Final = ("include_usage", "include_obfuscation")


def with_messages(
    body: Mapping[str, Any], messages: object, limits: DirectFields
) -> dict[str, Any]:
    """Return the same call with other messages: only they are looked at. Raises Refused."""
    _check_messages(messages, _ROLES[CHAT])
    known = _NESTED | set(limits.extra_fields) | body.keys()
    _check_nested({"messages": messages}, known, _FREE)
    return {**body, "messages": messages}


def invalid(param: str, message: str, code: str = "invalid_value") -> Refused:
    return Refused(400, f"Invalid {param!r}: {message}", code=code, param=param)


def unsupported(param: str, message: str) -> Refused:
    return Refused(
        400,
        f"Unsupported parameter {param!r}: {message}",
        code="unsupported_parameter",
        param=param,
    )


def _check_names(given: Mapping[str, Any], known: Collection[str], endpoint: str) -> None:
    for name in given:
        if name not in known:
            raise unsupported(
                name[:SHOWN_CHARS],
                f"{endpoint} does not take it here, unless the operator names it in "
                "gateway.direct.extra_fields",
            )


def _check_model(model: object) -> None:
    if model is None:
        raise Refused(
            400,
            "You must provide a model parameter.",
            code="missing_required_parameter",
            param="model",
        )
    if not isinstance(model, str) or not 0 < len(model) <= MODEL_CHARS or not model.isprintable():
        raise invalid("model", f"give the name of a model, 1 to {MODEL_CHARS} printable characters")


def _check_items(given: object) -> None:
    """Check the input of a response: text, or a list of items."""
    if not isinstance(given, list):
        _check_inputs(given, "input")
        return
    if not 0 < len(given) <= MESSAGES_MAX:
        raise invalid("input", f"give text, or a list of 1 to {MESSAGES_MAX} items")
    for at, item in enumerate(given):
        if not isinstance(item, dict):
            raise invalid(f"input[{at}]", "an item is an object", "invalid_type")


def _check_messages(messages: object, roles: Collection[str]) -> None:
    if messages is None:
        raise Refused(
            400,
            "Missing required parameter: 'messages'.",
            code="missing_required_parameter",
            param="messages",
        )
    if not isinstance(messages, list) or not 0 < len(messages) <= MESSAGES_MAX:
        raise invalid("messages", f"give a list of 1 to {MESSAGES_MAX} messages")
    for at, message in enumerate(messages):
        _check_message(message, f"messages[{at}]", roles)


def _check_message(message: object, at: str, roles: Collection[str]) -> None:
    if not isinstance(message, dict):
        raise invalid(at, "a message is an object", "invalid_type")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in roles:
        raise invalid(f"{at}.role", f"give one of {', '.join(sorted(roles))}")
    if content is None:
        if role == "assistant" and any(
            message.get(name) for name in ("tool_calls", "function_call", "refusal", "audio")
        ):
            return
        raise invalid(f"{at}.content", "give text, or a list of parts", "invalid_type")
    if isinstance(content, str):
        return
    if not isinstance(content, list) or not 0 < len(content) <= PARTS_MAX:
        raise invalid(
            f"{at}.content", f"give text, or a list of 1 to {PARTS_MAX} parts", "invalid_type"
        )
    for part_at, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise invalid(
                f"{at}.content[{part_at}]", "a part is an object with a `type`", "invalid_type"
            )


def _check_inputs(given: object, name: str) -> None:
    """Check inputs: text, texts, tokens, or lists of tokens."""
    if given is None:
        raise Refused(
            400,
            f"Missing required parameter: {name!r}.",
            code="missing_required_parameter",
            param=name,
        )
    if isinstance(given, str):
        if not given:
            raise invalid(name, "it is empty")
        return
    if not isinstance(given, list) or not given:
        raise invalid(name, "give text, or a list of texts or tokens", "invalid_type")
    if all(map(_is_token, given)):
        return
    if len(given) > INPUTS_MAX:
        raise invalid(
            name, f"it has {len(given)} entries; at most {INPUTS_MAX} may be sent at once"
        )
    for at, one in enumerate(given):
        is_tokens = isinstance(one, list) and one and all(map(_is_token, one))
        if not is_tokens and not (isinstance(one, str) and one):
            raise invalid(
                f"{name}[{at}]", "give text that is not empty, or a list of tokens", "invalid_type"
            )


def _is_token(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _check_values(body: Mapping[str, Any], endpoint: str, limits: DirectFields) -> None:
    known = params_of(endpoint) or {}
    for name, value in body.items():
        fault = known[name].fault(value) if name in known else None
        if fault is not None:
            raise invalid(name, fault[1], fault[0])
    for name in _CAPPED:
        if (body.get(name) or 0) > limits.max_tokens:
            raise invalid(
                name, f"{body[name]} is above {limits.max_tokens}, the most that this server takes"
            )
    for name in ("n", "best_of"):
        if (body.get(name) or 0) > limits.max_n:
            raise invalid(
                name, f"{body[name]} is above {limits.max_n}, the most that this server takes"
            )
    for name in ("tools", "functions"):
        if len(body.get(name) or ()) > TOOLS_MAX:
            raise invalid(name, f"there are {len(body[name])}; at most {TOOLS_MAX} may be sent")
    if endpoint == MESSAGES and body.get("max_tokens") is None:
        raise Refused(
            400,
            "Missing required parameter: 'max_tokens'.",
            code="missing_required_parameter",
            param="max_tokens",
        )
    if body.get("background"):
        raise unsupported("background", "a call waits for its answer: leave it out")
    checked_metadata(body.get("metadata"))


def _check_nested(body: Mapping[str, Any], known: Collection[str], free: Collection[str]) -> None:
    """Refuse a name that the API does not have inside the fields of a call.

    Depth is bounded by the parser."""
    for path, name in _names_below(body, free):
        if name not in known:
            raise unsupported(
                f"{_written(path)}.{name[:SHOWN_CHARS]}"[:SHOWN_CHARS], "it is not known there"
            )


def _names_below(value: Any, free: Collection[str]) -> Iterator[tuple[Path, str]]:
    """Yield each name inside of the fields with where it stands.

    The place is written out only for an error: a body may have hundreds of thousands of them, far
    below one another."""
    waiting: list[tuple[Path | None, Any]] = [(None, value)]
    while waiting:
        at, one = waiting.pop()
        if isinstance(one, list):
            waiting += [
                ((at, number), each)
                for number, each in enumerate(one)
                if isinstance(each, dict | list)
            ]
        elif isinstance(one, dict):
            for name, each in one.items():
                if at is not None:
                    yield at, name
                if name not in free and isinstance(each, dict | list):
                    waiting.append(((at, name), each))


def _written(path: Path) -> str:
    parts = list[str]()
    at: Path | None = path
    while at is not None:
        at, part = at
        parts.append(f"[{part}]" if isinstance(part, int) else f".{part}")
    return "".join(reversed(parts)).removeprefix(".")
