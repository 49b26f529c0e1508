from __future__ import annotations

import io
import logging

import pytest

from penstock_ledger import redaction
from penstock_ledger.redaction import (
    HIDDEN,
    LineFormatter,
    redact,
    redact_bytes,
    remember,
    remember_url,
    remember_variables,
)

KEY = "sk-canary-0123456789abcdefghij"


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_texts", ())
    monkeypatch.setattr(redaction, "_bytes", ())


@pytest.mark.parametrize(
    ("said", "left"),
    [
        (f"Incorrect API key provided: {KEY}.", "Incorrect API key provided: [redacted]."),
        ("got sk-ant-api03-AbCdEf0123456789_-xyz here", "got [redacted] here"),
        ("Authorization: Bearer abc123.def-456_ghi", "Authorization: Bearer [redacted]"),
        ("AKIAIOSFODNN7EXAMPLE is unknown", "[redacted] is unknown"),
        ("key AIzaSyA1234567890abcdefghijklmnopqrstu", "key [redacted]"),
        ("gsk_0123456789abcdefghij and hf_0123456789abcdefghij", "[redacted] and [redacted]"),
        (
            "cannot reach redis://fleet:hunter2@cache:6379/0",
            "cannot reach redis://fleet:[redacted]@cache:6379/0",
        ),
        (
            "https://b.s3/x?X-Amz-Signature=0a1b2c&part=1",
            "https://b.s3/x?X-Amz-Signature=[redacted]&part=1",
        ),
        ('{"x-api-key": "0123456789abc"}', '{"x-api-key": "[redacted]"}'),
        (
            "use Bearer authentication, see ask-me-anything",
            "use Bearer authentication, see ask-me-anything",
        ),
        (
            "http://127.0.0.1:8399/v1 refused a task-list",
            "http://127.0.0.1:8399/v1 refused a task-list",
        ),
    ],
)
def test_shapes_of_keys(said: str, left: str) -> None:
    """What has the shape of a provider's key or of a password in a URL is hidden, ordinary words
    are not (B14)."""
    assert redact(said) == left


def test_known_values() -> None:
    """A value that this process was given is hidden wherever it turns up, as JSON and URLs write
    it, too (B14)."""
    remember("no/shape at+all")
    assert (
        redact("a no/shape at+all b no\\/shape at+all c no%2Fshape%20at%2Ball d")
        == f"a {HIDDEN} b {HIDDEN} c {HIDDEN} d"
    )
    assert redact_bytes(b"\xff no/shape at+all") == b"\xff [redacted]"


def test_a_cut_text_does_not_end_in_a_beginning() -> None:
    """Of a text that was cut in the middle of a known value nothing of the value is left (B14)."""
    remember("no-shape-at-all-1234")
    assert redact("refused no-shape-at-a", cut=True) == f"refused {HIDDEN}"


def test_urls_and_variables() -> None:
    """Passwords in URLs, in either spelling, and variables whose names say so are known (B17)."""
    remember_url("postgresql://fleet:p%40ss/word@db:5432/penstock?sslpassword=other-secret")
    remember_variables(
        {
            "HF_TOKEN": "token-of-mine",
            "PENSTOCK_X__API_KEY_ENV": "HF_TOKEN",
            "FLOWER_BASIC_AUTH": "me:flowery-1",
        }
    )
    assert redact("p%40ss/word p@ss/word other-secret token-of-mine flowery-1") == " ".join(
        [HIDDEN] * 5
    )
    assert redact("HF_TOKEN is not set, db, penstock") == "HF_TOKEN is not set, db, penstock"


def test_a_password_that_is_no_secret_hides_nothing() -> None:
    """A password equal to its user or database does not make every log line unreadable."""
    remember_url("postgresql://penstock:penstock@db/penstock")
    assert redact("penstock.item of penstock") == "penstock.item of penstock"


def test_latin_bytes_survive() -> None:
    """A refusal in any encoding keeps its bytes beside a key that is taken out (B14)."""
    assert redact_bytes(b"\xe9\x00 " + KEY.encode() + b" \xff") == b"\xe9\x00 [redacted] \xff"


@pytest.fixture
def lines() -> tuple[logging.Logger, io.StringIO]:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(LineFormatter("%(levelname)s %(message)s"))
    log = logging.Logger("of-the-test")
    log.addHandler(handler)
    return log, out


def test_a_record_is_one_line(lines: tuple[logging.Logger, io.StringIO]) -> None:
    """A provider's line feed, ESC, NUL and surrogate stay inside the record's own line (B23)."""
    log, out = lines
    log.warning("the provider says: %s", "no\nERROR forged\r\x1b[2J\x00\u202e\ud800")
    assert (
        out.getvalue()
        == "WARNING the provider says: no\\nERROR forged\\x0d\\x1b[2J\\x00\\u202e\ufffd\n"
    )


def test_tracebacks_are_indented_and_clean(lines: tuple[logging.Logger, io.StringIO]) -> None:
    """No line of a traceback can be taken for a record, and none shows a key (B23)."""
    log, out = lines
    try:
        raise RuntimeError(f"first\nERROR forged {KEY}\x1b[0m")
    except RuntimeError:
        log.exception("it failed")
    first, *rest = out.getvalue().splitlines()
    assert first == "ERROR it failed"
    assert rest
    assert all(line.startswith("    ") for line in rest)
    assert KEY not in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_a_token_in_the_place_of_a_user_is_hidden() -> None:
    """A web server's user without a password is one, and so are the options that Azure's functions
    and its signed addresses have; a database's user is none."""
    remember_url("https://whole-login-1@git.example/v1?code=lonely-code-2&sig=lonely-sig-3&v=1")
    assert redact("whole-login-1 lonely-code-2 lonely-sig-3") == " ".join([HIDDEN] * 3)
    assert (
        redact("at https://other-login-4@git.example/v1") == f"at https://{HIDDEN}@git.example/v1"
    )
    url = "postgresql+psycopg://somebody@db/penstock"
    remember_url(url)
    assert redact(url) == url


def test_a_list_of_hosts_hides_what_stands_behind_it() -> None:
    """An address in brackets behind another host, which Python's own reading refuses, takes the
    password of the Sentinels away as any other."""
    remember_url("sentinel://s1:26379,[::1]:26381/0?service=jobs&sentinel_password=hushed-one")
    assert "hushed-one" not in redact("the Sentinel said: hushed-one is wrong")
