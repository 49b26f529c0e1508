"""Celery's consumer with a faster path for items; what it cannot read is set aside."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

from celery.exceptions import CPendingDeprecationWarning, InvalidTaskError
from celery.worker.consumer import Consumer
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.utils.url import maybe_sanitize_url

from penstock_ledger.keys import PARKED_UNKNOWN
from penstock_producer.feed.wire import TASK_NAME
from penstock_workers.broker.acks import Ack
from penstock_workers.celery_app.door_tasks import MAX_TASK_BYTES
from penstock_workers.celery_app.handover import ItemPool

log = logging.getLogger(__name__)


class ItemConsumer(Consumer):  # type: ignore[misc]  # Celery is untyped
    """Has messages set aside that Celery would drop as unknown, unregistered or invalid."""

    app: Any  # the PenstockApp

    class Blueprint(Consumer.Blueprint):  # type: ignore[misc]  # Celery is untyped
        """The steps of Celery's consumer, without two.

        `inspect stats` would show the broker's password: kombu takes all that follows our scheme
        for a host name. Celery's delayed delivery, 28 queues and as many exchanges on RabbitMQ, is
        not needed: retries wait in Redis."""

        default_steps = tuple(
            step
            for step in Consumer.Blueprint.default_steps
            if not step.endswith(":DelayedDelivery")
        )

        def info(self, parent: Any) -> dict[str, Any]:
            info: dict[str, Any] = super().info(parent)
            broker = info.get("broker")
            if isinstance(broker, dict):
                broker["hostname"] = maybe_sanitize_url(broker.get("hostname"))
            return info

    def start(self) -> None:
        """Start with the number of items that the pool holds.

        An engine that is up may run more than the settings say."""
        if isinstance(self.pool, ItemPool):
            self.app.parts.consumer = self
            self.initial_prefetch_count = self.max_prefetch_count
        super().start()

    def create_task_handler(self, *arguments: Any, **options: Any) -> Callable[..., None]:
        """Return what is called with each message.

        Celery makes two promises per message, for brokers that acknowledge one by one."""
        handle: Callable[..., None] = super().create_task_handler(*arguments, **options)
        pool = self.pool
        if not isinstance(pool, ItemPool):
            return handle  # the strategy logs what is wrong

        def on_message(message: Any) -> None:
            task = message.headers.get("task") if isinstance(message.headers, dict) else None
            if task != TASK_NAME and len(message.body) > MAX_TASK_BYTES:
                self._keep_aside_unread(message)
            elif isinstance(task, str) and task in self.strategies:
                self._begin(task, message, Ack(pool.handover.acks, message))
            else:
                handle(message)

        return on_message

    def _begin(self, task: str, message: Any, ack: Ack) -> None:
        try:
            self.strategies[task](
                message, None, ack, message.reject_log_error, self.on_task_message
            )
        except (InvalidTaskError, ContentDisallowed) as error:
            self.on_invalid_task(None, message, error)
        except DecodeError as error:
            self.on_decode_error(message, error)

    def _keep_aside_unread(self, message: Any) -> None:
        """Set a message aside before it is parsed, which needs several times its size in memory."""
        log.error(
            "message %s has %d bytes of arguments and %d are allowed; it is set aside in %s. Put "
            "documents into a source",
            message.delivery_tag,
            len(message.body),
            MAX_TASK_BYTES,
            PARKED_UNKNOWN,
        )
        message.reject_log_error(log, self.connection_errors)

    def ensure_connected(self, conn: Any) -> Any:
        """Wait for the broker, and do the hub's work each second meanwhile.

        Celery blocks here until the broker is back."""
        pool, ensure = self.pool, conn.ensure_connection
        if not isinstance(pool, ItemPool):
            return super().ensure_connected(conn)

        def ensure_alive(errback: Any, max_retries: Any, *, callback: Callable[[], None]) -> Any:
            def wait() -> None:
                pool.reconnecting()
                callback()

            return ensure(errback, max_retries, callback=wait)

        conn.ensure_connection = ensure_alive
        try:
            return super().ensure_connected(conn)
        finally:
            conn.ensure_connection = ensure

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        # Celery warns each time about the future default of a setting that is set here
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CPendingDeprecationWarning)
            super().on_connection_error_after_connected(exc)

    def on_unknown_message(self, body: Any, message: Any) -> None:
        super().on_unknown_message("", _without_arguments(message))

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:
        super().on_unknown_task("", _without_arguments(message), exc)

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:
        super().on_invalid_task("", message, exc)

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        log.error("message %s cannot be decoded (%s); it is set aside", message.delivery_tag, exc)
        message.reject_log_error(log, self.connection_errors)


def _without_arguments(message: Any) -> Any:
    """Take the arguments out of a rejected message before Celery logs it.

    Celery logs headers and body, documents and prompts included. The message is kept whole
    elsewhere.
    """
    if isinstance(message.headers, dict):
        for name in ("argsrepr", "kwargsrepr"):
            message.headers.pop(name, None)
    return message
