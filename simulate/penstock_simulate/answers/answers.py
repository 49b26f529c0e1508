"""Answers that follow from the request alone.

A category and a summary of the prompt, or unit vectors from a hash.

Tokens are counted as a quarter of the characters everywhere, so what is charged, reported and
limited agree.
"""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from hashlib import shake_256
from typing import Any

import orjson

from penstock_simulate.answers.structured import instance
from penstock_simulate.choices import BadSetting
from penstock_simulate.reply import Usage

CHARS_PER_TOKEN = 4
CATEGORY_CHARS = 240  # of a document, read for its category
SUMMARY_CHARS = 96  # with the category that is 127 at most: max_tokens=32 never cuts an answer
# a colon or blank line within these ends the instruction, and the document follows
INSTRUCTION_CHARS = 160
EMBEDDING_DIMENSIONS = 256
MAX_EMBEDDING_DIMENSIONS = 4096
# 2026-01-01: a fixed time keeps the answer to a request the same byte for byte
CREATED_AT = 1_767_225_600

_CATEGORIES: Mapping[str, Sequence[str]] = {
    "files": (
        "file",
        "files",
        "path",
        "directory",
        "archive",
        "filename",
        "read",
        "write",
        "stream",
        "zip",
        "tar",
    ),
    "network": (
        "socket",
        "http",
        "url",
        "server",
        "client",
        "address",
        "request",
        "response",
        "email",
        "message",
    ),
    "text": (
        "string",
        "strings",
        "text",
        "unicode",
        "characters",
        "encoding",
        "regular",
        "parse",
        "format",
        "line",
    ),
    "concurrency": (
        "thread",
        "threads",
        "lock",
        "process",
        "task",
        "coroutine",
        "future",
        "event",
        "queue",
        "loop",
    ),
    "time": ("time", "date", "datetime", "timezone", "clock", "calendar", "seconds", "month"),
    "numbers": (
        "number",
        "integer",
        "float",
        "decimal",
        "random",
        "digits",
        "mean",
        "fraction",
        "math",
    ),
    "code": (
        "module",
        "class",
        "function",
        "method",
        "import",
        "compile",
        "bytecode",
        "ast",
        "code",
        "decorator",
    ),
    "testing": ("test", "tests", "assert", "mock", "fixture", "testcase", "fail"),
    "collections": (
        "list",
        "dict",
        "sequence",
        "mapping",
        "set",
        "items",
        "iterator",
        "iterable",
        "key",
        "keys",
    ),
    "security": (
        "hash",
        "secret",
        "ssl",
        "certificate",
        "password",
        "digest",
        "key-derivation",
        "tls",
    ),
}
_BY_WORD = {word: category for category, words in _CATEGORIES.items() for word in words}


_count: Callable[[str], int] | None = None  # of this process; None: by characters


def count_as(encoding: str) -> None:
    """Count tokens as an encoding of tiktoken does, from now on in this process.

    Raises BadSetting where tiktoken, or its file, is not there."""
    global _count
    try:
        import tiktoken  # pyright: ignore[reportMissingImports]

        encode = tiktoken.get_encoding(encoding).encode_ordinary
    except Exception as error:  # tiktoken fetches a file that is missing, and says so in many ways
        raise BadSetting(f"--encoding {encoding} cannot be used: {error!r}") from error
    _count = lambda text: len(encode(text))  # noqa: E731 -- one more name would say no more


def tokens_of(text: str) -> int:
    return -(-len(text) // CHARS_PER_TOKEN) if _count is None else _count(text)


def chars_per_token(text: str) -> float:
    """Return how many characters of a text a token has."""
    return CHARS_PER_TOKEN if _count is None or not text else len(text) / _count(text)


def prompt_of(body: Mapping[str, Any]) -> str:
    """Return all the text of a chat or completion request, the newest message last."""
    messages = body.get("messages")
    if messages is None:
        prompt = body.get("prompt")
        return prompt if isinstance(prompt, str) else "\n".join(map(str, prompt or ()))
    if len(messages) == 1:
        return _content(messages[0].get("content"))
    return "\n".join([_content(message.get("content")) for message in messages])


def last_of(body: Mapping[str, Any], prompt: str) -> str:
    """Return the part of the prompt to answer: the last message, or a completion's whole prompt."""
    messages = body.get("messages")
    return _content(messages[-1].get("content")) if messages else prompt


def write_answer(body: Mapping[str, Any], question: str) -> str:
    """Return what the model says, before `max_tokens` cuts it."""
    wanted = body.get("response_format")
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    subject = _subject(question)
    if function := forced_function(body):
        takes = function.get("parameters") or {"type": "object"}
        return orjson.dumps(instance(takes, _summary(subject))).decode()
    if kind == "json_schema" and isinstance(wanted, dict):
        given = wanted.get("json_schema")
        schema = given.get("schema") if isinstance(given, dict) else None
        return orjson.dumps(
            instance(schema, _summary(subject), str(body.get("model", "")))
        ).decode()
    if kind == "json_object":
        return orjson.dumps({"category": _category(subject), "summary": _summary(subject)}).decode()
    return f"Category: {_category(subject)}\nSummary: {_summary(subject)}"


def forced_function(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the function that the answer of a chat must call."""
    choice, tools = body.get("tool_choice"), body.get("tools")
    if choice in (None, "auto", "none") or not isinstance(tools, list):
        return None
    named = choice.get("function") if isinstance(choice, dict) else None
    name = named.get("name") if isinstance(named, dict) else None
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and (choice == "required" or function.get("name") == name):
            return function
    return None


def cut_answer(text: str, max_tokens: int | None) -> tuple[str, str]:
    """Return the answer within ``max_tokens``, and its finish reason."""
    if max_tokens is not None and len(text) > max_tokens * chars_per_token(text):
        return text[: int(max_tokens * chars_per_token(text))], "length"
    return text, "stop"


def chat_body(
    ident: str,
    model: str,
    text: str,
    finish: str,
    usage: Usage,
    tool: Mapping[str, Any] | None,
    tier: str,
) -> bytes:
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if tool is not None and finish == "stop":
        function = {"name": tool.get("name"), "arguments": text}
        called = {"id": "call_" + ident, "type": "function", "function": function}
        message |= {"content": None, "tool_calls": [called]}
        finish = "tool_calls"
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return _answer("chatcmpl-" + ident, "chat.completion", model, choice, usage, service_tier=tier)


def completion_body(ident: str, model: str, text: str, finish: str, usage: Usage) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return _answer("cmpl-" + ident, "text_completion", model, choice, usage)


def embedding_body(
    model: str, texts: Sequence[str], dimensions: int, encoding: str, usage: Usage
) -> bytes:
    vectors = [unit_vector(text, dimensions) for text in texts]
    data = [
        {"object": "embedding", "index": at, "embedding": _encoded(vector, encoding)}
        for at, vector in enumerate(vectors)
    ]
    counted = {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt}
    return orjson.dumps({"object": "list", "data": data, "model": model, "usage": counted})


def unit_vector(text: str, dimensions: int) -> list[float]:
    """Return a vector of length 1 that follows from the text.

    Other texts give nearly orthogonal ones.
    """
    raw = array("h", shake_256(text.encode("utf-8", "surrogatepass")).digest(2 * dimensions))
    length = math.sqrt(math.fsum(part * part for part in raw)) or 1.0
    return [part / length for part in raw]


def _answer(
    ident: str, kind: str, model: str, choice: dict[str, Any], usage: Usage, **more: str
) -> bytes:
    return orjson.dumps(
        {
            "id": ident,
            "object": kind,
            "created": CREATED_AT,
            "model": model,
            "choices": [choice],
            "usage": {
                "prompt_tokens": usage.prompt,
                "completion_tokens": usage.completion,
                "total_tokens": usage.prompt + usage.completion,
                **_details(usage),
            },
        }
        | more
    )


def _details(usage: Usage) -> dict[str, Any]:
    """Return what is said of the prompt cache, where it was of use."""
    if not (usage.cached or usage.written):
        return {}
    written = {"cache_write_tokens": usage.written} if usage.written else {}
    return {"prompt_tokens_details": {"cached_tokens": usage.cached} | written}


def _content(content: Any) -> str:
    """Return a message's text; of a list of parts, those that are text."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return ""


def _subject(question: str) -> str:
    """Return the document within a prompt: what follows the instruction, where there is one."""
    head = question[:INSTRUCTION_CHARS]
    ends = [at for at in (head.find("\n\n"), head.find(": "), head.find(":\n")) if at >= 0]
    rest = question[min(ends) + 2 :] if ends else ""
    return rest if rest.strip() else question


def _category(subject: str) -> str:
    for word in subject[:CATEGORY_CHARS].lower().split():
        category = _BY_WORD.get(word.strip(".,;:()'\"`"))
        if category is not None:
            return category
    return "other"


def _summary(subject: str) -> str:
    """Return the first sentence, on one line."""
    text = " ".join(subject[: SUMMARY_CHARS + 40].split())
    end = text.find(". ")
    sentence = text[: end + 1] if end >= 0 else text
    return (
        sentence if len(sentence) <= SUMMARY_CHARS else sentence[: SUMMARY_CHARS - 1].rstrip() + "…"
    )


def _encoded(vector: list[float], encoding: str) -> list[float] | str:
    return (
        base64.b64encode(array("f", vector).tobytes()).decode() if encoding == "base64" else vector
    )
