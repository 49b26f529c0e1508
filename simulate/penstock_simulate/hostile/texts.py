"""Words that a store, a log or a screen chokes on."""

from __future__ import annotations

from penstock_simulate.hostile.kinds import JSON, Asked, Kind, error, fixed
from penstock_simulate.reply import Reply

SURROGATE = b"\xed\xa0\x80"  # U+D800 as UTF-8 would write it, were it a character
FORGED = (
    r"no\r\n2026-01-01 00:00:00 CRITICAL penstock: everything is lost\u001b[2J\u001b]0;pwned\u0007"
)
CONTENT = b'"content":"'


def _said(text: bytes) -> bytes:
    return (
        b'{"id":"c","object":"chat.completion","created":0,"model":"m","choices":[{"index":0,"message":{"role":'
        b'"assistant",' + CONTENT + text + b'"},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
    )


def _echo(asked: Asked) -> Reply:
    """As gateways do that print the request into the error."""
    words = asked.authorization.replace("\\", "").replace('"', "")
    return Reply(400, error(f"Bad request with headers: Authorization: {words}"), JSON)


KINDS = (
    Kind("nul", "400 whose message holds a NUL", fixed(400, error(r"bad \u0000 request"))),
    Kind(
        "nul-account",
        "401 whose message holds a NUL",
        fixed(401, error(r"bad \u0000 key", "invalid_api_key")),
    ),
    Kind(
        "nul-answer",
        "200 whose content holds a NUL",
        fixed(200, _said(rb"nul \u0000 here")),
        answers=True,
    ),
    Kind(
        "surrogate",
        "400 whose message holds a lone surrogate",
        fixed(400, error(r"bad \ud800 request")),
    ),
    Kind(
        "surrogate-bytes",
        "400 with a surrogate's raw bytes",
        fixed(400, error("bad @").replace(b"@", SURROGATE)),
    ),
    Kind(
        "surrogate-answer",
        "200 whose content holds one",
        fixed(200, _said(rb"half \ud83d of it")),
        answers=True,
    ),
    Kind(
        "log-injection",
        "500 with line ends and escape sequences",
        fixed(500, error(FORGED, kind="server_error")),
    ),
    Kind("echo-key", "400 that repeats the request's Authorization header", _echo),
    Kind("long-message", "400 with a message of 1 MB", fixed(400, error("long " * 200_000))),
)
