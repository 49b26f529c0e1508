"""Celery's consumer, where it would acknowledge a message that it cannot read."""

from __future__ import annotations

import logging
from typing import Any

from celery.worker.consumer import Consumer

log = logging.getLogger(__name__)


class ItemConsumer(Consumer):  # type: ignore[misc]  # Celery is untyped
    """Messages that Celery rejects (unknown, unregistered, invalid) are kept aside by the transport; so are these."""

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        log.error("message %s cannot be decoded (%s); it is kept aside", message.delivery_tag, exc)
        message.reject_log_error(log, self.connection_errors)
