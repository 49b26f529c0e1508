"""Requests to clouds carry what boto3 and Google's own tools would find: a signature, or a token.

botocore and google-auth find and renew the credentials, and make the signature (version 4) and the
token; the requests are sent by the clients that send all others, so that limits, timeouts and
counts hold for them as well. docs/decisions.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from penstock_ledger.redaction import remember
from penstock_workers.errors import NoCredentials


def s3_address(region: str | None) -> str:
    """Return the address of S3 in a region, or the one that the environment names in its place."""
    import botocore.session

    client = botocore.session.Session().create_client("s3", region_name=region)
    address: str = client.meta.endpoint_url
    return address


class Signer:
    """Signs the requests of one service in one region. Safe to use from one loop."""

    def __init__(self, service: str, region: str, credentials: Any) -> None:
        self._service, self._region, self._credentials = service, region, credentials

    @classmethod
    def of(cls, provider: str, service: str, region: str | None) -> Signer:
        """Find the credentials: variables, profiles, and what a container or a machine is given.

        May ask the network. Raises NoCredentials."""
        try:
            import botocore.session
        except ImportError:
            raise NoCredentials(
                provider, "botocore is not installed", "pip install 'penstock[bedrock]'"
            ) from None
        from botocore.exceptions import BotoCoreError

        try:
            found = botocore.session.Session().get_credentials()
        except BotoCoreError as error:
            raise NoCredentials(provider, str(error)) from None
        if found is None:
            raise NoCredentials(provider, "none were found")
        signer = cls(service, region or "", found)
        signer._frozen(provider)
        return signer

    def of_service(self, service: str) -> Signer:
        """Return what signs for another service in the same region."""
        return Signer(service, self._region, self._credentials)

    async def headers(self, method: str, url: str, body: bytes = b"") -> Mapping[str, str]:
        """Return the headers that sign a request to exactly this URL with this body.

        Raises NoCredentials."""
        if self._wants_new():
            await asyncio.to_thread(self._frozen, "")
        return self.signed(method, url, body)

    def signed(self, method: str, url: str, body: bytes = b"") -> Mapping[str, str]:
        """Sign as ``headers`` does, and wait for new credentials where they are due.

        What goes to S3 is streamed, and its bytes are no part of the signature."""
        from botocore.auth import S3SigV4Auth, SigV4Auth
        from botocore.awsrequest import AWSRequest

        request = AWSRequest(method=method, url=url, data=body)
        if self._service == "s3":
            auth: Any = S3SigV4Auth(self._frozen(""), self._service, self._region)
            auth.payload = lambda _: "UNSIGNED-PAYLOAD"
        else:
            auth = SigV4Auth(self._frozen(""), self._service, self._region)
        auth.add_auth(request)
        return dict(request.headers.items())

    def _wants_new(self) -> bool:
        due = getattr(self._credentials, "refresh_needed", None)
        return bool(due is not None and due())

    def _frozen(self, provider: str) -> Any:
        """Return the credentials of now, which are hidden in whatever is said from here on."""
        from botocore.exceptions import BotoCoreError

        try:
            frozen = self._credentials.get_frozen_credentials()
        except BotoCoreError as error:
            raise NoCredentials(provider, str(error)) from None
        for secret in (frozen.access_key, frozen.secret_key, frozen.token):
            if secret:
                remember(secret)
        return frozen


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
