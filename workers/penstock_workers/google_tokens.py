"""Calls to Google Cloud carry a token of the credentials that Google's own tools would find.

google-auth finds them and gets a token from them; the calls are made by the clients that make all
others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from penstock_ledger.redaction import remember
from penstock_workers.errors import NoCredentials

SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_FIX: Final = (
    "run `gcloud auth application-default login`, set GOOGLE_APPLICATION_CREDENTIALS, run where a "
    "service account is given, or name the variable of a token: api_key_env"
)


class GoogleTokens:
    """The tokens of one account, each used until shortly before it runs out."""

    def __init__(self, provider: str, credentials: Any) -> None:
        self._provider, self._credentials = provider, credentials
        self._one_at_a_time = asyncio.Lock()

    @classmethod
    def of(cls, provider: str) -> GoogleTokens:
        """Find the credentials; may ask the network. Raises NoCredentials."""
        try:
            import google.auth
            from google.auth.exceptions import GoogleAuthError
        except ImportError:
            fix = "pip install 'penstock[vertex]'"
            raise NoCredentials(provider, "google-auth is not installed", fix) from None
        try:
            credentials, _ = google.auth.default(scopes=[SCOPE])
        except GoogleAuthError as error:
            raise NoCredentials(provider, str(error).partition(".")[0], _FIX) from None
        return cls(provider, credentials)

    async def headers(self, method: str, url: str, body: bytes = b"") -> Mapping[str, str]:
        """Return the header with a token that is good. Raises NoCredentials."""
        if not self._credentials.valid:
            async with self._one_at_a_time:
                if not self._credentials.valid:
                    await asyncio.to_thread(self._renew)
        return {"Authorization": f"Bearer {self._credentials.token}"}

    def signed(self, method: str, url: str, body: bytes = b"") -> Mapping[str, str]:
        """Return the header as ``headers`` does, and wait for a token where none is good."""
        if not self._credentials.valid:
            self._renew()
        return {"Authorization": f"Bearer {self._credentials.token}"}

    def _renew(self) -> None:
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request

        try:
            self._credentials.refresh(Request())
        except GoogleAuthError as error:
            why = str(error)[:200]
            raise NoCredentials(self._provider, why, _FIX) from None
        remember(self._credentials.token)
