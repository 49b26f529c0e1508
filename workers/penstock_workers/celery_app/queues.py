"""The queues that a worker takes messages of. Those of a model and its adapters may come and go while it runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from celery import Celery
from kombu.entity import Queue

from penstock_workers.broker.amqp.publisher import QUORUM
from penstock_workers.settings import WorkerSettings

log = logging.getLogger(__name__)


def queue_of(settings: WorkerSettings, name: str) -> Queue:
    return Queue(name, routing_key=name, queue_arguments=None if settings.broker_url is None else QUORUM)


def consume(app: Celery, settings: WorkerSettings, queues: Sequence[str]) -> None:
    """Add queues that the lane knows of only once it is up, as those of a server's models; before the consumer starts."""
    known = app.amqp.queues
    for name in queues:
        if name not in known:
            known.select_add(queue_of(settings, name))


def change(consumer: Any, settings: WorkerSettings, more: Sequence[str], fewer: Sequence[str]) -> None:
    """While Celery's ``consumer`` runs, on the hub thread. Where its connection is lost, the next one has what is right."""
    app = consumer.app
    consume(app, settings, more)
    app.amqp.queues.deselect(list(fewer))
    if consumer.task_consumer is None:
        return
    try:
        for name in more:
            consumer.add_task_queue(name)
        for name in fewer:
            consumer.cancel_task_queue(name)
    except (*consumer.connection_errors, *consumer.channel_errors) as error:
        log.warning("the connection was lost while queues were changed (%s); the next one has the right ones", error)
