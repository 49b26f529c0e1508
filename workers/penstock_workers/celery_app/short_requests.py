"""A Celery request for ordinary items, without the parts of Celery's own that no item uses.

Celery's own request reads dates, time limits, stamps and results from each message, and its strategy asks per message what
is the same for all of them. tests/contract/test_celery_short_requests.py holds both kinds of request side by side, so that
a change in a new Celery is noticed.
"""

from __future__ import annotations

import logging
from time import monotonic, time
from typing import Any

from celery import signals
from celery.utils.log import get_logger
from celery.worker import state

from penstock_workers.celery_app.requests import ItemRequest

# Headers of what only Celery's whole request does. The producer sends none of them.
UNUSUAL = ("eta", "expires", "timelimit", "shadow", "stamped_headers", "ignore_result")
_strategy_log = get_logger("celery.worker.strategy")


class ShortRequest(ItemRequest):
    """``of_consumer`` makes the class whose instances are requests: what all of them share are its attributes."""

    def __init__(self, message: Any, on_ack: Any) -> None:  # Celery's own reads fifteen headers more
        headers = dict(message.headers)
        delivery, properties = message.delivery_info, message.properties
        self._message, self._on_ack, self._on_reject = message, on_ack, message.reject_log_error
        self._body = message.body
        self._content_type, self._content_encoding = message.content_type, message.content_encoding
        self._Request__payload = payload = message.payload
        self.id = headers["id"]
        self._root_id, self._parent_id = headers.get("root_id"), headers.get("parent_id")
        self._argsrepr, self._kwargsrepr = headers.get("argsrepr", ""), headers.get("kwargsrepr", "")
        self._delivery_info = {
            "exchange": delivery.get("exchange"),
            "routing_key": delivery.get("routing_key"),
            "priority": properties.get("priority"),
            "redelivered": delivery.get("redelivered", False),
        }
        headers["args"], headers["kwargs"], _ = payload
        headers["properties"], headers["delivery_info"] = properties, self._delivery_info
        headers["reply_to"], headers["correlation_id"] = properties.get("reply_to"), properties.get("correlation_id")
        headers["hostname"] = self._hostname
        self._args, self._kwargs = headers["args"], headers["kwargs"]
        self._request_dict = headers

    @staticmethod
    def of_consumer(task: Any, app: Any, consumer: Any) -> type[ShortRequest]:
        """For one connection of the consumer: its event dispatcher is another one after each reconnect."""
        common = {
            "_app": app, "_task": task, "_type": task.name, "name": task.name, "_hostname": consumer.hostname,
            "_eventer": consumer.event_dispatcher, "_connection_errors": consumer.connection_errors or (),
            "_utc": app.uses_utc_timezone(), "_decoded": False, "_eta": None, "_expires": None,
            "_ignore_result": task.ignore_result,
        }  # fmt: skip
        return type("ShortItemRequest", (ShortRequest,), common)

    @staticmethod
    def suits(message: Any) -> bool:
        """False for what Celery's own strategy must see: dates, limits, stamps, a listener to its signal, its log."""
        headers = message.headers
        return (
            all(headers.get(name) is None for name in UNUSUAL)
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
        """It has ended: as Celery's, without Celery's list of finished tasks: the ledger has them."""
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
