"""Requests leave for their provider's address, with its key or signed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from penstock_workers.clouds import GoogleTokens, Signer
from penstock_workers.http import Target
from penstock_workers.item.lane import Request
from penstock_workers.lanes.api.requests import content_type_of
from penstock_workers.provider_calls import address_of, headers_of, signer_of
from penstock_workers.settings import ProviderSettings

TARGETS_KEPT = 1024  # pairs of provider and endpoint; a job has one endpoint


class Outgoing:
    """The addresses of all providers of a worker, and what each call to them carries."""

    def __init__(self, providers: Mapping[str, ProviderSettings]) -> None:
        self._providers = providers
        self._headers: dict[str, Mapping[str, str]] = {}
        # of providers whose requests are signed, or carry a token
        self._signers: dict[str, Signer | GoogleTokens] = {}
        self._targets: dict[tuple[str, str], Target] = {}  # by provider and endpoint

    async def start(self) -> None:
        """Read keys and credentials. Raises MissingApiKey, PlainHttp and NoCredentials."""
        for name, provider in self._providers.items():
            key = provider.api_key(name)
            self._headers[name] = headers_of(provider.kind, key)
            if (signer := await asyncio.to_thread(signer_of, name, provider)) is not None:
                self._signers[name] = signer

    def target(self, name: str, endpoint: str) -> Target:
        """Return where a request goes; raise UnusableRequest."""
        found = self._targets.get((name, endpoint))
        if found is not None:
            return found
        provider = self._providers[name]
        headers = {**self._headers[name], **content_type_of(endpoint)}
        target = Target.of(address_of(provider, endpoint), headers, proxy=provider.proxy)
        if len(self._targets) < TARGETS_KEPT:
            self._targets[name, endpoint] = target
        return target

    async def headers(self, request: Request, target: Target) -> dict[str, str]:
        """Return the headers of this call alone; raise NoCredentials."""
        headers = {"X-Client-Request-Id": request.tag}
        if (signer := self._signers.get(request.provider)) is not None:
            headers |= await signer.headers("POST", target.url, request.body)
        return headers
