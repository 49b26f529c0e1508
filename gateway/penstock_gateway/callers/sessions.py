"""Sessions of the dashboard: a signed cookie that names a key, which is looked up with each
request.

The cookie counts on the dashboard's own paths only. The API takes keys in headers, which no browser
sends by itself. Each session has an id of its own, so that signing out ends this one at every door
(`penstock_ledger.EndedSessions`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from typing import Final, NamedTuple

__all__ = ["COOKIE", "SESSION_S", "Session", "new_session", "read_session", "signed_session"]

COOKIE: Final = "penstock_session"
SESSION_S: Final = 12 * 3600.0  # a working day; then the key is asked for again
ID_BYTES: Final = 16
_PURPOSE: Final = (
    "session"  # signed with the rest: the same secret signs forms, and neither stands for the other
)


class Session(NamedTuple):
    """What a cookie says.

    Its id opens nothing, and neither does that of its key: the signature does."""

    key_id: str
    session_id: str
    ends_at: int


def new_session(key_id: str, now: float) -> Session:
    """Begin a session of who has typed this key."""
    return Session(key_id, secrets.token_hex(ID_BYTES), int(now + SESSION_S))


def signed_session(secret: str, session: Session) -> str:
    """Return the value of its cookie."""
    told = f"{session.key_id}.{session.session_id}.{session.ends_at}"
    return f"{told}.{_signature(secret, told)}"


def read_session(secret: str, cookie: str, now: float) -> Session | None:
    """Return the session of a cookie; None for one that has expired, that another has made, or that
    is of an older Penstock."""
    told, _, signature = cookie.rpartition(".")
    if not hmac.compare_digest(
        _signature(secret, told).encode(), signature.encode("utf-8", "replace")
    ):
        return None
    key_id, session_id, ends_at = told.split(".")
    session = Session(key_id, session_id, int(ends_at))
    return session if now < session.ends_at else None


def _signature(secret: str, told: str) -> str:
    digest = hmac.digest(
        secret.encode(), f"{_PURPOSE}:{told}".encode("utf-8", "replace"), hashlib.sha256
    )
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
