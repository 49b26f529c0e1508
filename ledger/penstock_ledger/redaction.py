"""Keep secrets out of errors, logs and all else that is said: the one place that knows them.

What a model answered is never touched: it belongs to the one who paid for it, and is stored as it
came. Two kinds of secrets are known. Values that this process was given (API keys, passwords inside
URLs, variables with names such as ``…_TOKEN``), which the code that reads them passes to
``remember``; and the shapes of keys that providers hand out, wherever they come from. A text
without any costs about a microsecond.

Every Penstock process writes its log by this rule: one record is one line, without secrets and
without commands to a terminal.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from penstock_ledger.lone_surrogates import replace_surrogates

__all__ = [
    "HIDDEN",
    "LineFormatter",
    "is_secret_name",
    "is_secret_option",
    "log_to_stderr",
    "looks_secret",
    "make_safe",
    "one_line",
    "redact",
    "redact_bytes",
    "redact_excerpt",
    "remember",
    "remember_url",
    "remember_variables",
    "several_lines",
]

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
INDENT: Final = "    "  # before the lines of a traceback: only a record starts in the first column

# C0 and C1 controls but the tab, DEL, the bidirectional overrides and the line separators:
# everything that moves a cursor, colours, hides or reorders text, or begins a line.
_CONTROL: Final = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

HIDDEN: Final = "[redacted]"
# Local servers take any key, so that people give `x`, `ollama`, `EMPTY` or `placeholder`: hiding
# those would make every error unreadable and protect nothing. No provider's key is shorter than 16
# characters, and no guide for passwords allows fewer than 8.
MIN_CHARS: Final = 8
# below it, letters alone are a word and digits alone a number of ordinary texts
SURE_CHARS: Final = 16
MIN_DIFFERENT: Final = 4  # characters: `xxxxxxxxxxxxxxxxxxxx` and lines of dashes are no secrets
MAX_VALUES: Final = 500  # forms of values that are remembered; each costs every text one search
# of a body that is searched for shapes; known values are found in all of it
MAX_PATTERN_BYTES: Final = 64 * 1024

_SECRET_NAME: Final = re.compile(
    r"(?:^|[_.-])(?:api_?key|access_?key|key|token|secret|pass|passwd|password|credentials?|auth|authorization|cookie|dsn)$",
    re.I,
)

# (what must be in the lower-cased text for the search to be worth it, the shape, what stays of it)
_SHAPES: Final = (
    ("sk-", re.compile(r"\bsk-[A-Za-z0-9_-]{12,}"), ""),
    ("aiza", re.compile(r"\bAIza[A-Za-z0-9_-]{20,}"), ""),
    ("akia", re.compile(r"\bAKIA[A-Z0-9]{12,}"), ""),
    ("asia", re.compile(r"\bASIA[A-Z0-9]{12,}"), ""),
    ("_", re.compile(r"\b(?:gsk|hf|xai|ghp|gho|ghs|github_pat|fw)_[A-Za-z0-9_]{16,}"), ""),
    ("-", re.compile(r"\b(?:xai|nvapi|pplx|csk|glpat)-[A-Za-z0-9_-]{16,}"), ""),
    ("bearer", re.compile(r"\b(bearer\s+)(?=\S*\d)[A-Za-z0-9._~+/=-]{8,}", re.I), r"\1"),
    ("basic", re.compile(r"\b(basic\s+)(?=\S*[0-9=])[A-Za-z0-9+/=]{8,}", re.I), r"\1"),
    (
        "key",
        re.compile(r"\b((?:x-)?(?:goog-)?api-key[\"']?\s*[:=]\s*[\"']?)[^\s\"',}]{8,}", re.I),
        r"\1",
    ),
    ("://", re.compile(r"(://[^\s:/@\"']*:)[^\s\"']+@"), r"\1"),
    # a user alone of a web server: a token in the place of a name and a password
    ("http", re.compile(r"\b(https?://)[^\s:/@?#\"']{8,}(?=@)", re.I), r"\1"),
    (
        "=",
        re.compile(
            r"([?&;](?:\w*password|token|access_token|api_?key|key|sig|signature|X-Amz-(?:Signature|Credential|Security-Token))=)"
            r"[^&\s\"']+",
            re.I,
        ),
        r"\1",
    ),
)

# longest first, so that a value inside another one does not leave a rest
_texts: tuple[str, ...] = ()
_bytes: tuple[bytes, ...] = ()


def one_line(text: str) -> str:
    """Return ``text`` with control characters as escapes and U+FFFD for lone surrogates."""
    return replace_surrogates(_CONTROL.sub(lambda match: _escape(match[0]), text))


def several_lines(text: str) -> str:
    """Return the same, but the line feeds stay."""
    return "\n".join(one_line(line) for line in text.split("\n"))


class LineFormatter(logging.Formatter):
    """A formatter that keeps what providers, documents and errors say inside a record's line.

    A traceback follows its record in lines of its own, each indented, so that none of them can be
    taken for a record.
    """

    def __init__(self, fmt: str = FORMAT) -> None:
        super().__init__(fmt)

    def format(self, record: logging.LogRecord) -> str:
        record.exc_text = None  # another handler's formatter may have left its own there
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(redact(super().formatMessage(record)))

    def formatException(self, ei: _ExcInfo | Any) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


def log_to_stderr() -> None:
    """Log to stderr where this process has no log yet; a log that is there is made safe."""
    if not logging.getLogger().handlers:
        logging.getLogger().addHandler(logging.StreamHandler(sys.stderr))
        logging.getLogger().setLevel(logging.INFO)
    make_safe(logging.getLogger())


def make_safe(logger: logging.Logger) -> None:
    """Give this module's formatter to the handlers of a logger that other code has set up."""
    for handler in logger.handlers:
        if not isinstance(handler.formatter, LineFormatter):
            handler.setFormatter(LineFormatter())
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(LineFormatter("%(message)s"))


def _indented(text: str) -> str:
    return "\n".join(INDENT + one_line(line) for line in redact(text).split("\n"))


def _escape(character: str) -> str:
    if character == "\n":
        return "\\n"
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def remember(*values: str | None) -> None:
    """Hide these values from now on, also as JSON and URLs write them.

    Those that can be no secret are left out."""
    global _texts, _bytes
    known = set(_texts)
    for value in values:
        if value is not None and _can_be_secret(value) and len(known) < MAX_VALUES:
            known |= {
                value,
                json.dumps(value)[1:-1],
                value.replace("/", "\\/"),
                quote(value, safe=""),
            }
    if len(known) != len(_texts):
        _texts = tuple(sorted(known, key=len, reverse=True))
        _bytes = tuple(text.encode("utf-8", "surrogatepass") for text in _texts)


def remember_url(url: str | None) -> None:
    """Hide the password of a URL, and what its query calls one.

    A password that is also its user, its host or its database is not a secret that could be hidden.
    """
    if url is None or "://" not in url:
        return
    after = url.partition("://")[2]
    # the last @: one that is not encoded may stand in a password
    login, _, rest = after.rpartition("@")
    user, colon, password = login.partition(":")
    if not colon and url.startswith(("http:", "https:")):
        user, password = "", user  # a token in the place of a name and a password
    shown = {user, *re.split(r"[/:?,]", rest)}
    remember(*(value for value in {password, unquote(password)} if value not in shown))
    query = parse_qsl(split_hosts(url).query)
    remember(*(value for name, value in query if is_secret_option(name)))


def split_hosts(url: str) -> SplitResult:
    """Return the parts of a URL that may name several hosts, none of which is looked at.

    ``urlsplit`` of newer Pythons (3.13.5) refuses a list with an address in brackets behind a host.
    """
    scheme, sign, after = url.partition("://")
    hosts = re.split(r"[/?#]", after, maxsplit=1)[0]
    rest = urlsplit(f"{scheme}{sign}{after.removeprefix(hosts)}")
    return rest._replace(netloc=hosts)


def remember_variables(variables: Mapping[str, str]) -> None:
    """Hide the values of variables with secret names, and the passwords of URLs in any."""
    for name, value in variables.items():
        if name.upper().endswith("_HEADERS"):  # OTEL_EXPORTER_OTLP_HEADERS: name=value,name=value
            remember(*(unquote(part.partition("=")[2]) for part in value.split(",")))
        elif not is_secret_name(name):
            remember_url(value)
        elif not (value in variables or value.isdigit() or _is_path(value)):
            remember(value, *(part.partition(":")[2] for part in value.split(",")))


def is_secret_name(name: str) -> bool:
    """Return whether a field of this name holds a secret: `api_key`, `HF_TOKEN`."""
    return _SECRET_NAME.search(name) is not None


def is_secret_option(name: str) -> bool:
    """Return whether an option of a URL holds a secret: `password`, `sslpassword`, `token`.

    `code` and `sig` are Azure's names of its own."""
    lowered = name.lower()
    return lowered.endswith("password") or lowered in ("code", "sig") or is_secret_name(name)


def looks_secret(value: str) -> bool:
    """Return whether this text is, or has in it, a provider's key or a remembered value."""
    return redact(value) != value


def redact(text: str, *, cut: bool = False) -> str:
    """Return the text without secrets.

    ``cut``: its end was cut off, and may be the beginning of one.
    """
    for value in _texts:
        if value in text:
            text = text.replace(value, HIDDEN)
    lowered = text.lower()
    for sign, shape, kept in _SHAPES:
        if sign in lowered:
            text = shape.sub(kept + HIDDEN + ("@" if sign == "://" else ""), text)
    return _without_beginning(text) if cut else text


def redact_bytes(body: bytes) -> bytes:
    """Return a body in any encoding without secrets."""
    for value in _bytes:
        body = body.replace(value, HIDDEN.encode())
    head = body[:MAX_PATTERN_BYTES].decode("latin-1")  # byte by byte, whatever the encoding
    cleaned = redact(head)
    return body if cleaned == head else cleaned.encode("latin-1") + body[MAX_PATTERN_BYTES:]


def redact_excerpt(body: bytes, size: int) -> bytes:
    """Return the beginning of a body without secrets.

    Where it is cut, a secret's beginning goes, too."""
    head = redact_bytes(body[:size])
    if len(body) > size:
        for value in _bytes:
            for length in range(min(len(value) - 1, len(head)), MIN_CHARS - 1, -1):
                if head.endswith(value[:length]):
                    return head[:-length] + HIDDEN.encode()
    return head


def _can_be_secret(value: str) -> bool:
    if len(value) < MIN_CHARS or len(set(value)) < MIN_DIFFERENT:
        return False
    return len(value) >= SURE_CHARS or not (value.isalpha() or value.isdigit())


def _without_beginning(text: str) -> str:
    for value in _texts:
        for length in range(min(len(value) - 1, len(text)), MIN_CHARS - 1, -1):
            if text.endswith(value[:length]):
                return text[:-length] + HIDDEN
    return text


def _is_path(value: str) -> bool:
    """Return whether a value is a path.

    GOOGLE_APPLICATION_CREDENTIALS and variables like it name a file.
    """
    try:
        return value.startswith(("/", "~", ".")) and Path(value).expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False
