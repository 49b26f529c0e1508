"""How the consumer treats item messages: Celery's own strategy, after two questions of ours."""

from __future__ import annotations

from typing import Any

from celery.exceptions import ImproperlyConfigured, InvalidTaskError
from celery.worker import strategy as celery_strategy
from kombu.exceptions import ContentDisallowed, DecodeError

from penstock_workers.celery_app.events import gather_events
from penstock_workers.celery_app.pool import AsyncioPool

_CELERY_HANDLES = (InvalidTaskError, ContentDisallowed, DecodeError)


def item_strategy(task: Any, app: Any, consumer: Any, **options: Any) -> Any:
    """Called at start and after each reconnect. Celery keeps doing requests, revocation, expiry and task-received."""
    pool = consumer.pool
    if not isinstance(pool, AsyncioPool):
        raise ImproperlyConfigured(f"{task.name} runs in the pool that penstock configures: leave out -P/--pool")
    pool.meet(consumer)
    gather_events(consumer, pool.sample)
    handle = celery_strategy.default(task, app, consumer, **options)

    def on_message(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> Any:
        if pool.absorb(message):
            return None
        try:
            return handle(message, body, ack, reject, callbacks)
        except _CELERY_HANDLES:
            raise
        except Exception as error:  # a message of a shape that Celery does not foresee would end the worker
            raise InvalidTaskError(f"{type(error).__name__}: {error}") from error

    return on_message
