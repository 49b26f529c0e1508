"""The ways in which a request can end without a whole answer.

Each text is a sentence for a person."""

from __future__ import annotations


class HttpError(Exception):
    """The request has no whole answer."""


class UnusableRequest(HttpError):
    """Its URL or a header cannot be sent as given. Nothing was sent."""


class NotConnected(HttpError):
    """No connection to the server could be made. Nothing was sent."""


class CertificateRefused(NotConnected):
    """The server's certificate is not trusted, or is another host's. Nothing was sent."""


class ConnectionLost(HttpError):
    """The connection ended, or what came was no HTTP, before the answer was whole.

    The server may have seen the request."""


class TimedOut(HttpError):
    """The answer was not whole in time. The server may have seen the request."""


class AnswerTooLarge(HttpError):
    """The body has more bytes than the client's limits allow. The rest of it was not read."""
