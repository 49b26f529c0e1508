"""Status 200 around something that is no answer, and usage that is no usage."""

from __future__ import annotations

from collections.abc import Callable

from penstock_simulate.hostile.kinds import JSON, Asked, Kind, error, fixed
from penstock_simulate.reply import Reply

DEPTH = 100_000
DIGITS = 5_000
USAGE = b'"usage":'


def _usage(written: bytes) -> Callable[[Asked], Reply]:
    """The good answer with another usage."""

    def make(asked: Asked) -> Reply:
        head, _, _ = asked.answer.body.rpartition(USAGE)
        return asked.answer._replace(body=head + USAGE + written + b"}")

    return make


KINDS = (
    Kind(
        "error-200",
        "200 around an error",
        fixed(200, error("The engine is unavailable.", kind="server_error")),
    ),
    Kind("empty", "200 without a body", fixed(200, b"")),
    Kind("not-found", "404 for every path", fixed(404, error("Not found.", "not_found"))),
    Kind("array", "200 with a JSON array", fixed(200, b"[1,2,3]")),
    Kind(
        "no-choices",
        "200 without choices",
        fixed(200, b'{"id":"c","object":"chat.completion","choices":[]}'),
    ),
    Kind("nan", "200 with NaN and Infinity", fixed(200, b'{"choices":[NaN,Infinity]}')),
    Kind(
        "huge-number",
        "200 with a number of 5,000 digits",
        fixed(200, b'{"created":' + b"9" * DIGITS + b"}"),
    ),
    Kind("deep", "200 with 100,000 nested arrays", fixed(200, b"[" * DEPTH + b"]" * DEPTH)),
    Kind(
        "text-plain",
        "200 with plain text",
        fixed(200, b"Here you are.", {**JSON, "Content-Type": "text/plain"}),
    ),
    Kind(
        "usage-negative",
        "a good answer with negative usage",
        _usage(b'{"prompt_tokens":-5,"completion_tokens":-7,"total_tokens":-12}'),
        answers=True,
    ),
    Kind(
        "usage-absurd",
        "a good answer with usage beyond 64 bits",
        _usage(
            b'{"prompt_tokens":99999999999999999999999,"completion_tokens":1e300,"total_tokens":1}'
        ),
        answers=True,
    ),
    Kind(
        "usage-text",
        "a good answer with words for usage",
        _usage(b'{"prompt_tokens":"many","completion_tokens":null,"total_tokens":[]}'),
        answers=True,
    ),
)
