"""HTTP clients for workers: one interface, and behind it a lean client and aiohttp's.

Imports nothing else of Penstock.

``make_client("lean")`` gives a client, ``Target.of(url, headers)`` says where its requests go.

The client that the settings name.
"""

from __future__ import annotations

from typing import Literal

from penstock_workers.http.client import (
    AnswerTooLarge,
    CertificateRefused,
    ConnectionLost,
    HttpAnswer,
    HttpClient,
    HttpError,
    Limits,
    NotConnected,
    PartReader,
    Reserve,
    Target,
    TimedOut,
    UnusableRequest,
)
from penstock_workers.http.pool import LeanClient

__all__ = [
    "AnswerTooLarge",
    "CertificateRefused",
    "ClientName",
    "ConnectionLost",
    "HttpAnswer",
    "HttpClient",
    "HttpError",
    "Limits",
    "NotConnected",
    "PartReader",
    "Reserve",
    "Target",
    "TimedOut",
    "UnusableRequest",
    "make_client",
]


ClientName = Literal["lean", "aiohttp"]


def make_client(name: ClientName, limits: Limits | None = None) -> HttpClient:
    """Make a client, on the loop that it is to belong to."""
    if name == "lean":
        return LeanClient(limits)
    from penstock_workers.http.with_aiohttp import AiohttpClient

    return AiohttpClient(limits)
