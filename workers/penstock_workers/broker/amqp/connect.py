"""Connects to RabbitMQ outside of a worker's consumer, and registers Penstock's AMQP transports
with kombu."""

from __future__ import annotations

from typing import Any, Final

from kombu.connection import Connection
from kombu.exceptions import KombuError
from kombu.transport import TRANSPORT_ALIASES, pyamqp

from penstock_workers.amqp_address import SCHEME_PREFIX, AmqpAddress

__all__ = ["AMQP_ERRORS", "CHANNEL_ERRORS", "connect"]

CONNECT_TIMEOUT_S: Final = 5.0  # to one node
CHANNEL_ERRORS: Final = pyamqp.Transport.channel_errors
AMQP_ERRORS: Final = (*pyamqp.Transport.connection_errors, *CHANNEL_ERRORS, KombuError, OSError)
_TRANSPORTS: Final = {"amqp": "Transport", "amqps": "TlsTransport"}


def register() -> None:
    """Register Penstock's AMQP schemes with kombu."""
    for scheme, name in _TRANSPORTS.items():
        TRANSPORT_ALIASES[SCHEME_PREFIX + scheme] = f"penstock_workers.broker.amqp.transport:{name}"


def connect(address: AmqpAddress) -> Any:
    """kombu's connection to the first node that answers. Raises ``AMQP_ERRORS``."""
    register()
    options: Any = {"ssl": address.tls or False, "connect_timeout": CONNECT_TIMEOUT_S}
    broker = Connection(address.kombu_url, **options)
    try:
        broker.ensure_connection(max_retries=len(address.urls), interval_start=0, interval_step=0)
    except BaseException:
        broker.release()
        raise
    return broker
