"""A Celery pool that hosts an item engine: hundreds of items in flight on one asyncio loop, concluded in groups.

All of Celery's state, and all of this class, belongs to the hub thread; ``_post`` and ``_wake`` alone may be called
elsewhere. Ordinary tasks run in a few threads beside.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from time import monotonic
from typing import Any

from celery.concurrency.base import BasePool
from celery.exceptions import ImproperlyConfigured
from celery.worker.state import task_ready, task_reserved
from kombu.asynchronous import get_event_loop
from kombu.common import ignore_errors

from penstock_producer.wire import TASK_NAME
from penstock_workers.broker.acks import Acks
from penstock_workers.broker.leases import Fate, Leases
from penstock_workers.celery_app.bridge import Delivery, GivenBack, Retried, SetAside, Verdict
from penstock_workers.celery_app.drain import Drain
from penstock_workers.celery_app.host import EngineHost
from penstock_workers.celery_app.hosted import Hosted, HostedItems, LateAcks
from penstock_workers.celery_app.probe import ProbeFiles
from penstock_workers.celery_app.pulse import BEAT_S, Pulse
from penstock_workers.celery_app.reports import failure_report, retry_report
from penstock_workers.celery_app.sampling import EventSample
from penstock_workers.doors.threads import TaskThreads
from penstock_workers.metrics import catalogue, start_metrics
from penstock_workers.metrics.samples import Sample

log = logging.getLogger(__name__)


class AsyncioPool(BasePool):  # type: ignore[misc]  # Celery is untyped
    """``worker_pool`` of the worker app. Expects ``app.parts``, see ``app.py``."""

    signal_safe = False
    body_can_be_buffer = True
    task_join_will_block = False

    limit: int
    app: Any
    _is_hosting = False

    # -- Celery's side: life -----------------------------------------------------------------------------------------

    def on_start(self) -> None:
        hub = get_event_loop()
        if hub is None:
            raise ImproperlyConfigured(
                "items need Celery's event loop: use Redis or RabbitMQ as the broker, and no -P option"
            )
        self._hub: Any = hub
        parts = self.app.parts
        self._drain_seconds: float = parts.settings.drain_seconds
        self.sample = EventSample(parts.settings.event_sample)
        self._leases: Leases = parts.leases
        self._leases.on_lost = partial(self._post, self._lose)
        self._leases.on_late = partial(self._post, self._note_late)
        self._acks = Acks(self._leases, self._hub.call_soon)
        self._late = LateAcks()
        self._acks.on_unsure = self._late.add
        self._hosted = HostedItems()
        self._threads = TaskThreads(self._post, self._acks.give_back, self._hub.call_later)
        self._calls: deque[Callable[[], object]] = deque()  # other threads -> hub
        self._counts = dict.fromkeys(("failed", "retried", "given-back", "adopted", "late", "lost-leases"), 0)
        self._consumer: Any = None
        self._drain: Drain | None = None
        self._host = EngineHost(partial(parts.build_engine, self.app, parts.settings), self._wake)
        self._leases.may_renew = self._host.loop_turns
        probes = ProbeFiles(parts.settings.probe_dir)
        self.pulse = Pulse(probes, self._leases, may_rest=self._may_rest, engine=self._host)
        self._lane: str = parts.settings.lane
        self._page = contextlib.ExitStack()
        self._page.enter_context(start_metrics(parts.settings, self.figures))
        self._host.start()
        self._is_hosting = True
        probes.started()
        hub.call_repeatedly(BEAT_S, self.pulse.beat)

    def on_stop(self) -> None:
        """Warm shutdown, or the end of a cold one. Called again (a second signal) it ends the drain at once."""
        if not self._is_hosting:  # the engine could not start, and Celery ends the worker
            return
        if self._drain is not None:
            self._drain.hurry()
            return
        self.pulse.drain()
        self._drain = Drain(self, self._host, self._hub, self._drain_seconds)
        self._drain.run()

    def on_terminate(self) -> None:
        self.on_stop()

    def finish(self, timeout_s: float) -> None:
        """The last act: events and conclusions leave the process."""
        self._threads.stop()
        self.deliver()
        if self._consumer is not None and self._consumer.event_dispatcher is not None:
            ignore_errors(self._consumer, self._consumer.event_dispatcher.flush)
        if not self._leases.flush(timeout_s):
            log.warning("Redis is out of reach: %d messages return when their lease ends", len(self._leases))
        self._page.close()

    def is_idle(self) -> bool:
        """No ordinary task is running."""
        return not self._threads.tags

    def meet(self, consumer: Any) -> None:
        """Called at start and after each reconnect."""
        self._consumer = consumer
        self.pulse.meet()

    def flush(self) -> None:
        """The consumer has lost its connection and forgets what it has not handed to this pool: give that back."""
        kept = self._hosted.tags() | self._threads.tags
        self._acks.flush()
        self._leases.conclude([tag for tag in self._leases.tags() if tag not in kept], Fate.GIVE_BACK)

    def grow(self, n: int = 1) -> None:
        self.limit += n
        self._host.resize(self.limit)

    def shrink(self, n: int = 1) -> None:
        self.limit = max(1, self.limit - n)
        self._host.resize(self.limit)

    # -- Celery's side: work -----------------------------------------------------------------------------------------

    def apply_async(self, target: Any, args: Any = (), kwargs: Any = None, **options: Any) -> None:
        """Run a request: Celery passes bound methods of it as the callbacks."""
        request = options["accept_callback"].__self__
        if args[0] == TASK_NAME:
            self._accept(request)
        else:
            request._on_ack = self.ack_of(request.message)
            self._threads.run(request, target, args, options)

    def ack_of(self, message: Any) -> Callable[..., None]:
        """What a request calls to acknowledge its message, from the hub thread."""
        return self._acks.bind(message)

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """A revoked item; Celery acknowledges it right after. In a cold shutdown Celery does not: then it goes back."""
        hosted = self._hosted.of_pid(pid)
        if hosted is not None:
            self._hosted.discard(hosted)
            self._host.abort(hosted.delivery, "it was revoked")
            self._post(self._give_back_unless_acknowledged, hosted)

    def absorb(self, message: Any) -> bool:
        """True when a claimed message needs no run of its own: it is a redelivered copy of one that we know."""
        hosted = self._hosted.of_tag(message.delivery_tag)
        if hosted is not None:
            self._adopt(hosted, message)
            return True
        if self._late.recognise(message):
            self._counts["late"] += 1
            self._acks.bind(message)()
            return True
        return False

    def _may_rest(self) -> bool:
        """No room for messages, or an operator has cancelled every queue."""
        limit = self._consumer.qos.value if self._consumer is not None else 0
        return bool(limit and len(self._leases) >= limit) or not self.app.amqp.queues.consume_from

    def _accept(self, request: Any) -> None:
        message, headers = request.message, request.request_dict
        retries = headers.get("retries")
        delivery = Delivery(
            task_id=request.id,
            kwargs=headers["kwargs"],
            headers=headers,
            retries=retries if isinstance(retries, int) else 0,
            redelivered=bool(request.delivery_info["redelivered"]),
            queue=request.delivery_info["routing_key"] or "",
            raw=getattr(message, "raw", None),
        )
        request.receive(self.sample)
        self._hosted.add(delivery, request)
        self._host.accept(delivery)

    def _adopt(self, hosted: Hosted, message: Any) -> None:
        """The lease was lost, or the connection: the broker sent what is still running here. The run goes on."""
        self._counts["adopted"] += 1
        hosted.message = message
        hosted.request._on_ack = self._acks.bind(message)
        task_reserved(hosted.request)

    # -- the engine's side -------------------------------------------------------------------------------------------

    def deliver(self) -> None:
        """Do what other threads have asked for. Called by the hub, and by the drain when the hub turns no more."""
        while self._calls:
            self._safely(self._calls.popleft())
        for delivery, verdict in self._host.outcomes():
            hosted = self._hosted.of_delivery(delivery)
            if hosted is None:  # aborted, and not ours to judge any more
                continue
            try:
                self._note(hosted, verdict)
            except Exception:
                log.exception("a bug of ours while concluding %s; it goes back to its queue", delivery.task_id)
                self._acks.give_back(hosted.message)
        self._acks.flush()

    def give_back_all(self) -> int:
        """Whatever is still here returns to its queue; the engine is not asked."""
        left = self._hosted.all()
        for hosted in left:
            self._give_back(hosted)
        return len(left)

    def _note(self, hosted: Hosted, verdict: Verdict | None) -> None:
        if verdict is None:
            self._start(hosted)
            return
        if isinstance(verdict, GivenBack):
            self._give_back(hosted)
            return
        self._hosted.discard(hosted)
        request = hosted.request
        if isinstance(verdict, SetAside):
            request.reject(requeue=False)
            task_ready(request)
        elif isinstance(verdict, Retried):
            self._counts["retried"] += 1
            request.on_success((1, retry_report(verdict), 0.0))
        elif verdict.ok:
            request.on_success((0, None, verdict.runtime_s))
        else:
            self._counts["failed"] += 1
            request.on_success((1, failure_report(verdict), verdict.runtime_s))

    def _start(self, hosted: Hosted) -> None:
        if hosted.request.revoked():  # while it waited here; this has acknowledged it
            self._hosted.discard(hosted)
            self._host.abort(hosted.delivery, "it was revoked")
        else:
            hosted.request.on_accepted(hosted.pid, monotonic())

    def _give_back(self, hosted: Hosted) -> None:
        self._counts["given-back"] += 1
        self._hosted.discard(hosted)
        hosted.request.acknowledged = True  # from here on nobody may acknowledge it
        task_ready(hosted.request)
        self._acks.give_back(hosted.message)

    def _give_back_unless_acknowledged(self, hosted: Hosted) -> None:
        if not hosted.request.acknowledged:
            self._give_back(hosted)

    def _lose(self, tags: Iterable[str]) -> None:
        """Others may hold these by now: stop paying for them here."""
        for tag in tags:
            hosted = self._hosted.of_tag(tag)
            if hosted is not None and tag not in self._leases:  # else it has been claimed anew, by this process
                self._counts["lost-leases"] += 1
                self._hosted.discard(hosted)
                hosted.request.acknowledged = True
                task_ready(hosted.request)
                self._host.abort(hosted.delivery, "its lease was lost")

    def _note_late(self, fate: Fate, tags: Sequence[str]) -> None:
        self._counts["lost-leases"] += len(tags)
        if fate is Fate.ACK:
            self._late.add(tags)

    # -- any thread --------------------------------------------------------------------------------------------------

    def _post(self, step: Callable[..., object], *arguments: Any, **_: Any) -> None:
        self._calls.append(partial(step, *arguments))
        self._wake()

    def _wake(self) -> None:
        self._hub.call_soon(self.deliver)

    def _safely(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception:
            log.exception("a bug of ours in the pool; the worker goes on")

    # -- figures -----------------------------------------------------------------------------------------------------

    def figures(self) -> Iterator[Sample]:
        """Any thread."""
        lane, leases = self._lane, self._leases
        yield catalogue.HELD(len(leases), lane)
        yield catalogue.LEASES_LOST(self._counts["lost-leases"], lane)
        yield catalogue.LEASES_RESTORED(leases.restored, lane)
        yield catalogue.DUPLICATES(leases.dropped, lane)
        yield from self._host.figures()

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()
        leases = self._leases
        info.update({
            "items": len(self._hosted), "acks": self._acks.acked, "ack-groups": self._acks.groups,
            "commits": self._host.commits, "leases": len(leases), "renewals": leases.renewals,
            "duplicates-dropped": leases.dropped, "retries-put-off": leases.put_off, "restored": leases.restored,
            "event-share": round(self.sample.share, 4), **self._counts, **self._host.stats(),
        })  # fmt: skip
        return info
