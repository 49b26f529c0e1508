"""A Celery request for ordinary items, without the parts of Celery's own that no item uses.

Celery's own request reads dates, time limits, stamps and results from each message, and its
strategy asks per message what is the same for all of them.
tests/contract/test_celery_short_requests.py holds both kinds of request side by side, so that a
change in a new Celery is noticed.
"""

from __future__ import annotations

import logging
from functools import cached_property
from time import monotonic, time
from typing import Any

from celery import signals
from celery.utils.log import get_logger
from celery.worker import state

from penstock_workers.celery_app.shown.requests import ItemRequest

# Headers of what only Celery's whole request does. The producer sends none of them.
UNUSUAL = frozenset({"eta", "expires", "timelimit", "shadow", "stamped_headers", "ignore_result"})
_strategy_log = get_logger("celery.worker.strategy")


class ShortRequest(ItemRequest):
    """``of_consumer`` makes the class whose instances are requests: what all of them share are its
    attributes."""

    def __init__(self, message: Any, on_ack: Any) -> None:
        """Celery's own reads some thirty fields; here those that are seldom asked for are read when
        they are."""
        self._message, self._on_ack, self.id = message, on_ack, message.headers["id"]
        self._args, self._kwargs, _ = message.payload

    @cached_property
    def _request_dict(self) -> dict[str, Any]:
        message = self._message
        return {
            **message.headers,
            "properties": message.properties,
            "delivery_info": self._delivery_info,
            "reply_to": message.properties.get("reply_to"),
            "hostname": self._hostname,
            "correlation_id": message.properties.get("correlation_id"),
            "args": self._args,
            "kwargs": self._kwargs,
        }

    @cached_property
    def _delivery_info(self) -> dict[str, Any]:
        info, properties = self._message.delivery_info, self._message.properties
        return {
            "exchange": info.get("exchange"),
            "routing_key": info.get("routing_key"),
            "priority": properties.get("priority"),
            "redelivered": info.get("redelivered", False),
        }

    _on_reject = cached_property(lambda self: self._message.reject_log_error)
    _body = cached_property(lambda self: self._message.body)
    _content_type = cached_property(lambda self: self._message.content_type)
    _content_encoding = cached_property(lambda self: self._message.content_encoding)
    _Request__payload = cached_property(lambda self: self._message.payload)
    _root_id = cached_property(lambda self: self._message.headers.get("root_id"))
    _parent_id = cached_property(lambda self: self._message.headers.get("parent_id"))
    _argsrepr = cached_property(lambda self: self._message.headers.get("argsrepr", ""))
    _kwargsrepr = cached_property(lambda self: self._message.headers.get("kwargsrepr", ""))

    @staticmethod
    def of_consumer(task: Any, app: Any, consumer: Any) -> type[ShortRequest]:
        """For one connection of the consumer: its event dispatcher is another one after each
        reconnect."""
        common = {
            "_app": app,
            "_task": task,
            "_type": task.name,
            "name": task.name,
            "_hostname": consumer.hostname,
            "_eventer": consumer.event_dispatcher,
            "_connection_errors": consumer.connection_errors or (),
            "_utc": app.uses_utc_timezone(),
            "_decoded": False,
            "_eta": None,
            "_expires": None,
            "_ignore_result": task.ignore_result,
        }
        return type("ShortItemRequest", (ShortRequest,), common)

    @staticmethod
    def suits(message: Any) -> bool:
        """False for what Celery's own strategy must see: dates, limits, stamps, a listener to its
        signal, its log."""
        headers = message.headers
        return (
            headers.keys().isdisjoint(UNUSUAL)
            and not state.revoked_stamps
            and headers["id"] not in state.revoked
            and not signals.task_received.receivers
            and not _strategy_log.isEnabledFor(logging.INFO)
        )

    def reserve(self) -> None:
        """It waits for its turn: `inspect reserved` shows it."""
        state.requests[self.id] = self
        state.reserved_requests.add(self)

    def revoked(self) -> bool:
        """By its id: it has no date at which it ends, and no stamps."""
        return self.id in state.revoked and bool(super().revoked())

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """It starts: as Celery's, without a new counter for each item."""
        self.worker_pid, self.time_start = pid, time() - (monotonic() - time_accepted)
        state.requests[self.id] = self
        state.active_requests.add(self)
        state.total_count[self.name] += 1
        state.all_total_count[0] += 1
        if self._announced:
            self.send_event("task-started")
        if self._terminate_on_ack is not None:
            self.terminate(*self._terminate_on_ack)

    def on_success(self, failed__retval__runtime: tuple[int, Any, float], **options: Any) -> None:
        """It has ended: as Celery's, without Celery's list of finished tasks: the ledger has
        them."""
        failed, retval, runtime = failed__retval__runtime
        if failed:
            super().on_success(failed__retval__runtime, **options)
            return
        state.requests.pop(self.id, None)
        state.active_requests.discard(self)
        state.reserved_requests.discard(self)
        self.acknowledge()
        if self._announced:
            self.send_event("task-succeeded", result=retval, runtime=runtime)
