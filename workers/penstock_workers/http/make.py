"""The client that the settings name."""

from __future__ import annotations

from typing import Literal

from penstock_workers.http.client import HttpClient, Limits
from penstock_workers.http.lean import LeanClient

ClientName = Literal["lean", "aiohttp"]


def make_client(name: ClientName, limits: Limits | None = None) -> HttpClient:
    """To be called on the loop that the client is to belong to."""
    if name == "lean":
        return LeanClient(limits)
    from penstock_workers.http.with_aiohttp import AiohttpClient

    return AiohttpClient(limits)
