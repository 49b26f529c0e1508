"""Celery's requests as events and `inspect` show them, and a short one for items.

They show ids and reasons, never a document, a prompt or a job's spec. Celery's own request reads
dates, time limits, stamps and results from each message, and its strategy asks per message what is
the same for all of them; an item uses none of it. tests/contract/test_celery_short_requests.py
holds both kinds of request side by side, so that a change in a new Celery is noticed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from time import monotonic, time
from typing import Any

from celery import signals
from celery.exceptions import InvalidTaskError
from celery.utils.log import get_logger
from celery.worker import state
from celery.worker.request import Request

from penstock_ledger.redaction import redact, several_lines
from penstock_producer.feed.wire import CALLS_HEADER
from penstock_workers.celery_app.events import EventSample

# sent for sampled items only; other events are always sent
ROUTINE = frozenset({"task-started", "task-succeeded"})
WORDS = ("exception", "traceback", "reason")  # fields of an event that hold text from outside
# of a door's task: it becomes a part of keys, log lines and, without a job_key, the job's key
TASK_ID_MAX_CHARS = 255
ID_MAX_CHARS = 64  # of a document's or a job's id, beside the task id


class QuietRequest(Request):  # type: ignore[misc]  # Celery is untyped
    """Shows nothing of its arguments but the names in ``SHOWN``.

    Celery's own clients put a kilobyte of them into headers."""

    SHOWN: tuple[str, ...] = ("job_key",)

    _eventer: Any

    @property
    def argsrepr(self) -> str:
        return "()"

    @property
    def kwargsrepr(self) -> str:
        given = self._kwargs if isinstance(self._kwargs, Mapping) else {}
        return repr({name: _short(given[name]) for name in self.SHOWN if name in given})

    def send_event(self, type: str, **fields: Any) -> None:
        super().send_event(type, **_redacted(fields))

    def info(self, safe: bool = False) -> dict[str, Any]:
        """Describe the task for `inspect` and Flower, without its body.

        500 items with their bodies would be megabytes per call."""
        shown: dict[str, Any] = super().info(safe=True)
        return shown | {"args": self.argsrepr, "kwargs": self.kwargsrepr}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.humaninfo()}>"


class DoorRequest(QuietRequest):
    """A task of a remote door. Of the sender's headers only those in ``HEADERS`` are passed on.

    Celery lets a message name tasks to send when it has ended (links, chains, chords), to any
    queue: the worker would write them with its own rights to Redis, which its sender does not have.
    Its time limit is the operator's, and a task for later would stay in memory until then. Celery's
    own log lines read two headers in which clients put a kilobyte of arguments.
    """

    SHOWN = ("job_key", "job")
    HEADERS: tuple[str, ...] = (
        "id",
        "task",
        "root_id",
        "parent_id",
        "retries",
        "expires",
        "ignore_result",
    )

    def __init__(
        self,
        message: Any,
        *,
        body: Any = None,
        headers: Any = None,
        decoded: bool = False,
        **more: Any,
    ) -> None:
        """Raise InvalidTaskError for a message that is of another shape, or for later."""
        given = message.headers if headers is None else headers
        payload = body if decoded else message.payload
        kept = {name: given.get(name) for name in self.HEADERS}
        _check(kept, payload, later=given.get("eta") is not None)
        super().__init__(
            message, body=(payload[0], payload[1], {}), headers=kept, decoded=True, **more
        )
        self._argsrepr, self._kwargsrepr = self.argsrepr, self.kwargsrepr
        self._request_dict |= {"argsrepr": self._argsrepr, "kwargsrepr": self._kwargsrepr}


def _check(headers: Mapping[str, Any], payload: Any, *, later: bool) -> None:
    task_id = headers["id"]
    if not isinstance(task_id, str) or not 0 < len(task_id) <= TASK_ID_MAX_CHARS:
        raise InvalidTaskError(f"a task's id is text of 1 to {TASK_ID_MAX_CHARS} characters")
    if later:
        raise InvalidTaskError(
            "tasks of doors are done at once: send them without eta and countdown"
        )
    if not isinstance(payload, list | tuple) or len(payload) < 2:
        raise InvalidTaskError("a task's body is [args, kwargs, …]")
    if not isinstance(payload[0], list | tuple) or not isinstance(payload[1], dict):
        raise InvalidTaskError("a task's args are a list, and its kwargs an object")


class ItemRequest(QuietRequest):
    """Sends all events of an item, or only those of failures.

    ``ItemTask.send_events`` is off, so Celery adds none."""

    SHOWN = ("job", "gen", "doc")

    _received_at = 0.0
    _announced = False  # task-received is sent

    def receive(self, sample: EventSample) -> None:
        """Decide whether the item's events are sent.

        A retried item's always are, or Flower shows its retry for ever."""
        self._received_at = time()
        eventer = self._listened()
        if eventer is not None and (sample.takes(self.id) or self._came_before()):
            self._announce(eventer)

    def send_event(self, type: str, **fields: Any) -> None:
        eventer = self._listened()
        if eventer is None:
            return
        if not self._announced:
            if type in ROUTINE:
                return
            self._announce(eventer)
            if self.time_start:
                eventer.send("task-started", uuid=self.id, timestamp=self.time_start)
        eventer.send(type, uuid=self.id, **_redacted(fields))

    def _listened(self) -> Any:
        """Return the event dispatcher, where task events are switched on."""
        eventer: Any = self._eventer
        if (
            eventer is None
            or not eventer.enabled
            or (eventer.groups and "task" not in eventer.groups)
        ):
            return None
        return eventer

    def _came_before(self) -> bool:
        headers, info = self._message.headers, self._message.delivery_info
        return bool(headers.get("retries") or headers.get(CALLS_HEADER) or info.get("redelivered"))

    def _announce(self, eventer: Any) -> None:
        self._announced = True
        headers = self._request_dict
        eventer.send(
            "task-received",
            uuid=self.id,
            name=_short(self.name),
            args=self.argsrepr,
            kwargs=self.kwargsrepr,
            root_id=_short(headers.get("root_id")),
            parent_id=None,
            retries=_short(headers.get("retries")) or 0,
            timestamp=self._received_at or time(),
        )


def _redacted(fields: dict[str, Any]) -> dict[str, Any]:
    """Remove secrets and terminal control characters from the reason of a failure.

    It comes from outside."""
    words = {name: several_lines(redact(str(fields[name]))) for name in WORDS if fields.get(name)}
    return {**fields, **words}


def _short(value: Any) -> Any:
    """Cut an id: it comes from outside and may have any length."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else f"<{type(value).__name__}>"
    return text if len(text) <= ID_MAX_CHARS else text[: ID_MAX_CHARS - 1] + "…"


# Headers of what only Celery's whole request does. The producer sends none of them.
UNUSUAL = frozenset({"eta", "expires", "timelimit", "shadow", "stamped_headers", "ignore_result"})
_strategy_log = get_logger("celery.worker.strategy")


class ShortRequest(ItemRequest):
    """A request whose attributes are shared by all of one class; ``of_consumer`` makes that."""

    def __init__(self, message: Any, on_ack: Any) -> None:
        """Read what each item needs; what is seldom asked for is read when it is.

        Celery's own reads some thirty fields."""
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
        """Return the class for one connection of the consumer.

        Its event dispatcher is another one after each reconnect."""
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
        """Return False for what Celery's own strategy must see.

        Dates, limits, stamps, a listener to its signal, its log."""
        headers = message.headers
        return (
            headers.keys().isdisjoint(UNUSUAL)
            and not state.revoked_stamps
            and headers["id"] not in state.revoked
            and not signals.task_received.receivers
            and not _strategy_log.isEnabledFor(logging.INFO)
        )

    def reserve(self) -> None:
        """Enter the list of those that wait for their turn, which `inspect reserved` shows."""
        state.requests[self.id] = self
        state.reserved_requests.add(self)

    def revoked(self) -> bool:
        """Look whether it was revoked by its id: it has no date at which it ends, and no stamps."""
        return self.id in state.revoked and bool(super().revoked())

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Start as Celery's request does, without a new counter for each item."""
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
        """End as Celery's request does, without its list of finished tasks.

        The ledger has them."""
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
