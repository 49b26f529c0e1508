"""Answers that no client should trust: what `penstock simulate --hostile` sends, by name.

Each family is a file with a table of its kinds. A kind is a function of the request; nothing in
here sends a byte.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

from penstock_simulate.choices import BadSetting
from penstock_simulate.reply import Manner, Reply

__all__ = ["KINDS", "Kind", "chosen", "listing"]

JSON = {"Content-Type": "application/json"}


class Asked(NamedTuple):
    """The facts of a request that a kind may know."""

    answer: Reply  # what the model would have said
    authorization: str
    host: str  # the Host header: where redirects lead back to


class Kind(NamedTuple):
    """One way to answer.

    ``line`` is its text in the list; ``answers``: the result arrives all the same."""

    name: str
    line: str
    make: Callable[[Asked], Reply]
    answers: bool = False


def fixed(status: int, body: bytes, headers: Mapping[str, str] = JSON) -> Callable[[Asked], Reply]:
    """Return the same reply to every request."""
    reply = Reply(status, body, headers)
    return lambda _: reply


def with_headers(headers: Mapping[str, str]) -> Callable[[Asked], Reply]:
    """Return the good answer with these headers beside its own."""
    return lambda asked: asked.answer._replace(headers={**asked.answer.headers, **headers})


def error(message: str, code: str | None = None, kind: str = "invalid_request_error") -> bytes:
    """Return OpenAI's error body around a message already written as JSON without its quotes."""
    written = "null" if code is None else f'"{code}"'
    said = f'"message":"{message}","type":"{kind}","param":null,"code":{written}'
    return f'{{"error":{{{said}}}}}'.encode()


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
    """Echo the request, as gateways do that print it into the error."""
    words = asked.authorization.replace("\\", "").replace('"', "")
    return Reply(400, error(f"Bad request with headers: Authorization: {words}"), JSON)


TEXTS = (
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


HTML = {"Content-Type": "text/html; charset=utf-8", "Server": "edge"}
STATUSES = {
    200: "a login page",
    401: "a proxy's",
    403: "a firewall's",
    404: "a wrong path's",
    502: "a gateway's",
}


def _page(status: int) -> bytes:
    return (
        "<!doctype "
        f"html><html><head><title>{status}</title></head><body><h1>{status}</h1></body></html>"
    ).encode()


PAGES = tuple(
    Kind(
        f"html-{status}",
        f"{status} with {whose} HTML page" if status != 200 else f"200 with {whose}",
        fixed(status, _page(status), HTML),
    )
    for status, whose in STATUSES.items()
)


BUSY = error("Rate limit reached.", "rate_limit_exceeded", "requests")
RETRY_AFTER = {
    "hour": ("an hour", "3600"),
    "negative": ("-5", "-5"),
    "past": ("a date in the past", "Thu, 01 Jan 1970 00:00:00 GMT"),
    "garbage": ("'soon'", "soon"),
    "endless": ("1e400", "1e400"),
}
LIMIT = "x-ratelimit-limit-"
LEFT = "x-ratelimit-remaining-"
RESET = "x-ratelimit-reset-"
LIMITS = {
    "limit-requests": ("one request per minute", {f"{LIMIT}requests": "1", f"{LEFT}requests": "0"}),
    "limit-tokens": ("ten tokens per minute", {f"{LIMIT}tokens": "10", f"{LEFT}tokens": "0"}),
    "limit-nonsense": (
        "nonsense",
        {
            f"{LIMIT}requests": "1e400",
            f"{LEFT}requests": "-7",
            f"{LIMIT}tokens": "many",
            f"{RESET}tokens": "0x10",
        },
    ),
}

WAITS = (
    *(
        Kind(
            f"retry-after-{name}",
            f"429 with Retry-After: {line}",
            fixed(429, BUSY, {**JSON, "Retry-After": value}),
        )
        for name, (line, value) in RETRY_AFTER.items()
    ),
    *(
        Kind(
            name,
            f"a good answer whose headers name {line} as the limit",
            with_headers(headers),
            answers=True,
        )
        for name, (line, headers) in LIMITS.items()
    ),
)


TRAP = "/trap"
# another name of this machine, and so another host for a client that was given 127.0.0.1
ELSEWHERE = "localhost"


def _to(status: int, *, host: str | None = None) -> Callable[[Asked], Reply]:
    def make(asked: Asked) -> Reply:
        port = asked.host.rpartition(":")[2]
        root = f"http://{host}:{port}" if host else ""
        return Reply(status, b"", {"Location": f"{root}{TRAP}"})

    return make


REDIRECTS = (
    Kind("redirect-302", "302 to another path", _to(302)),
    Kind("redirect-307", "307 to another path", _to(307)),
    Kind("redirect-308", "308 to another path", _to(308)),
    Kind("redirect-host", "307 to another host", _to(307, host=ELSEWHERE)),
)


BLOCK = b" " * 65_536
LARGE_BYTES = 100 * 1024 * 1024
GZIP = {**JSON, "Content-Encoding": "gzip"}
DEFLATE = {**JSON, "Content-Encoding": "deflate"}
GZIP_WINDOW = 31  # zlib's number for a gzip header around the largest window


@cache
def bomb() -> bytes:
    """Pack 100 MB of blanks into 100 kB of gzip."""
    packer = zlib.compressobj(9, zlib.DEFLATED, GZIP_WINDOW)
    return (
        b"".join(packer.compress(BLOCK) for _ in range(LARGE_BYTES // len(BLOCK))) + packer.flush()
    )


def _gzip(body: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, GZIP_WINDOW)
    return packer.compress(body) + packer.flush()


def _large(manner: Manner, _: Asked) -> Reply:
    return Reply(200, BLOCK, JSON, manner=manner, times=LARGE_BYTES // len(BLOCK))


def _truncated(asked: Asked) -> Reply:
    packed = _gzip(asked.answer.body)
    return Reply(200, packed[: len(packed) // 2], GZIP)


SIZES = (
    Kind(
        "large",
        "200 with 100 MB and a Content-Length",
        lambda asked: _large(Manner.MEASURED, asked),
    ),
    Kind("large-chunked", "200 with 100 MB in chunks", lambda asked: _large(Manner.CHUNKED, asked)),
    Kind("gzip-bomb", "200 with 100 MB in 100 kB of gzip", lambda _: Reply(200, bomb(), GZIP)),
    Kind(
        "gzip-twice",
        "200 with a gzip bomb packed once more",
        lambda _: Reply(200, _gzip(bomb()), GZIP),
    ),
    Kind("gzip-half", "200 with half a gzip stream", _truncated),
    Kind(
        "gzip-lie",
        "200 that says gzip and is plain",
        lambda asked: asked.answer._replace(headers=GZIP),
    ),
    Kind(
        "deflate-lie",
        "200 that says deflate and is gzip",
        lambda asked: Reply(200, _gzip(asked.answer.body), DEFLATE),
    ),
)


HUGE_HEADER_BYTES = 1_000_000


def _raw(fields: bytes, body: bytes) -> Reply:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + fields + b"\r\n"
    return Reply(200, head + body, {}, manner=Manner.RAW)


def _length(asked: Asked, offset: int) -> Reply:
    body = asked.answer.body
    return _raw(b"Content-Length: %d\r\n" % (len(body) + offset), body)


def _twice(asked: Asked) -> Reply:
    body = asked.answer.body
    return _raw(b"Content-Length: %d\r\nContent-Length: 5\r\n" % len(body), body)


def _huge(asked: Asked) -> Reply:
    body = asked.answer.body
    return _raw(
        b"X-Huge: %s\r\nContent-Length: %d\r\n" % (b"x" * HUGE_HEADER_BYTES, len(body)), body
    )


WIRES = (
    Kind("hang", "no answer for --hang-s", lambda _: Reply(200, b"", {}, manner=Manner.HUNG)),
    Kind(
        "drip",
        "a good answer, a byte at a time",
        lambda asked: asked.answer._replace(manner=Manner.DRIPPED),
    ),
    Kind(
        "close",
        "the connection ends before the first byte",
        lambda _: Reply(200, b"", JSON, manner=Manner.DROPPED),
    ),
    Kind(
        "close-after-headers",
        "the connection ends after the headers",
        lambda _: _raw(b"Content-Length: 99\r\n", b""),
    ),
    Kind(
        "length-long",
        "a Content-Length that is 100 bytes too long",
        lambda asked: _length(asked, 100),
    ),
    Kind(
        "length-short",
        "a Content-Length that is 20 bytes too short",
        lambda asked: _length(asked, -20),
    ),
    Kind("length-twice", "two Content-Lengths that differ", _twice),
    Kind("huge-header", "a header of 1 MB", _huge),
    Kind(
        "no-http",
        "bytes that are not HTTP",
        lambda _: Reply(200, b"\x16\x03\x01 what?\r\n\r\n", {}, manner=Manner.RAW),
    ),
)


DEPTH = 100_000
DIGITS = 5_000
USAGE = b'"usage":'


def _usage(written: bytes) -> Callable[[Asked], Reply]:
    """Return the good answer with another usage."""

    def make(asked: Asked) -> Reply:
        head, _, _ = asked.answer.body.rpartition(USAGE)
        return asked.answer._replace(body=head + USAGE + written + b"}")

    return make


BODIES = (
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


FAMILIES = {
    "Texts": TEXTS,
    "Pages": PAGES,
    "Waits and limits": WAITS,
    "Redirects": REDIRECTS,
    "Sizes": SIZES,
    "The wire": WIRES,
    "Bodies": BODIES,
}
KINDS: Mapping[str, Kind] = {kind.name: kind for kinds in FAMILIES.values() for kind in kinds}


def chosen(names: str | None) -> tuple[Kind, ...]:
    """Return the kinds of `--hostile`. Raises BadSetting for a name that is unknown."""
    if names is None:
        return ()
    if names == "all":
        return tuple(KINDS.values())
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in KINDS:
            raise BadSetting(
                f"--hostile: {name!r} is not a kind; `penstock simulate --hostile list` shows all "
                "of them"
            )
    return tuple(KINDS[name] for name in dict.fromkeys(wanted))


def listing() -> str:
    """List every kind in a line of its own, by family."""
    width = max(map(len, KINDS))
    return "\n".join(
        f"{family}\n" + "".join(f"  {kind.name:<{width}}  {kind.line}\n" for kind in kinds)
        for family, kinds in FAMILIES.items()
    )
