"""HTTP clients for workers: one interface, and behind it a lean client and aiohttp's.

Imports nothing else of Penstock.

``make_client("lean")`` gives a client, ``Target.of(url, headers)`` says where its requests go.
"""

from penstock_workers.http.client import HttpAnswer, HttpClient, Limits, Reserve
from penstock_workers.http.errors import (
    AnswerTooLarge,
    CertificateRefused,
    ConnectionLost,
    HttpError,
    NotConnected,
    TimedOut,
    UnusableRequest,
)
from penstock_workers.http.make import ClientName, make_client
from penstock_workers.http.target import Target

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
    "Reserve",
    "Target",
    "TimedOut",
    "UnusableRequest",
    "make_client",
]
