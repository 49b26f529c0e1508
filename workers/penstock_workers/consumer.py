"""Celery's consumer, but that it keeps what it cannot read."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from celery.exceptions import CPendingDeprecationWarning
from celery.worker.consumer import Consumer

log = logging.getLogger(__name__)


class ItemConsumer(Consumer):  # type: ignore[misc]  # Celery is untyped
    """Messages that Celery rejects (unknown, unregistered, invalid) are kept aside by the transport; so are these."""

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        with warnings.catch_warnings():  # it tells each time that a setting of ours will one day have another default
            warnings.simplefilter("ignore", CPendingDeprecationWarning)
            super().on_connection_error_after_connected(exc)

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        log.error("message %s cannot be decoded (%s); it is kept aside", message.delivery_tag, exc)
        message.reject_log_error(log, self.connection_errors)
