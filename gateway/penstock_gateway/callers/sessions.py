"""Sessions of the dashboard: a signed cookie that names a key, which is looked up with each request.

The cookie counts on the dashboard's own paths only. The API takes keys in headers, which no browser sends by itself.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final

__all__ = ["COOKIE", "SESSION_S", "read_session", "sign_session"]

COOKIE: Final = "penstock_session"
SESSION_S: Final = 12 * 3600.0  # a working day; then the key is asked for again


def sign_session(secret: str, key_id: str, expires_at: float) -> str:
    """The value of the cookie."""
    told = f"{key_id}.{int(expires_at)}"
    return f"{told}.{_signature(secret, told)}"


def read_session(secret: str, cookie: str, now: float) -> str | None:
    """The id of its key; None for a cookie that has expired, or that another has made."""
    told, _, signature = cookie.rpartition(".")
    key_id, _, expires_at = told.rpartition(".")
    if not hmac.compare_digest(_signature(secret, told).encode(), signature.encode("utf-8", "replace")):
        return None
    return key_id if now < int(expires_at) else None


def _signature(secret: str, told: str) -> str:
    digest = hmac.digest(secret.encode(), told.encode("utf-8", "replace"), hashlib.sha256)
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
