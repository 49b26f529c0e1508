"""A Celery pool that hosts an item engine: hundreds of items in flight on one asyncio loop.

All of Celery's state, and all of this class, belongs to the hub thread; what is called elsewhere
says so. Items cross over in ``handover.py``; ordinary tasks run in a few threads beside.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import Thread
from time import monotonic
from typing import Any

from celery.exceptions import ImproperlyConfigured
from celery.signals import worker_shutting_down
from celery.worker import state
from kombu.asynchronous import get_event_loop
from kombu.common import ignore_errors

from penstock_ledger.errors import PenstockError
from penstock_producer.feed.wire import TASK_NAME
from penstock_workers.broker.acks import Acks
from penstock_workers.broker.leases import BrokerAction, Leases
from penstock_workers.celery_app.door_threads import TaskThreads
from penstock_workers.celery_app.drain import Drain
from penstock_workers.celery_app.ending import MACHINE_END
from penstock_workers.celery_app.engine_thread import EngineThread, loop_factory
from penstock_workers.celery_app.events import EventSample
from penstock_workers.celery_app.handover import HandOver, ItemPool
from penstock_workers.celery_app.liveness import BEAT_S, Liveness
from penstock_workers.celery_app.probe import ProbeFiles
from penstock_workers.celery_app.running_items import LateAcks, RunningItem
from penstock_workers.metrics import catalogue, start_metrics
from penstock_workers.metrics.samples import Sample
from penstock_workers.spot import Notice, SpotWatch

log = logging.getLogger(__name__)


class AsyncioPool(ItemPool):
    """``worker_pool`` of the worker app.

    Expects ``app.parts``, see ``app.py``. Owns the leases (``leases.LeaseOwner``)."""

    signal_safe = False
    body_can_be_buffer = True
    task_join_will_block = False

    limit: int
    app: Any
    _is_hosting = False

    # -- Celery's side: life -----------------------------------------------------------------------

    def on_start(self) -> None:
        hub = get_event_loop()
        if hub is None:
            raise ImproperlyConfigured(
                "items need Celery's event loop: use Redis or RabbitMQ as the broker, and no -P "
                "option"
            )
        self._hub: Any = hub
        self._calls: deque[Callable[[], object]] = deque()  # other threads -> hub
        self._consumer: Any = None
        self._drain: Drain | None = None
        parts = self.app.parts
        settings = parts.settings
        self._lane: str = settings.lane
        self._drain_seconds: float = settings.drain_seconds
        self.sample = EventSample(settings.event_sample)
        self._engine = EngineThread(
            partial(parts.build_engine, self.app, settings), loop_factory(settings.uvloop)
        )
        self._leases: Leases = parts.leases
        late = LateAcks()
        acks = Acks(self._leases, late.add, hub.call_soon)
        self.handover = HandOver(self._engine, acks, late, self.sample, self._wake)
        self._threads = TaskThreads(self._post, acks.give_back, hub.call_later)
        self._leases.serve(self)
        probes = ProbeFiles(settings.probe_dir)
        self.liveness = Liveness(probes, self._leases, may_rest=self._may_rest, engine=self._engine)
        self._watch = SpotWatch.of(settings, self._noticed)
        self._page = contextlib.ExitStack()
        self._page.enter_context(start_metrics(settings, self.figures))
        worker_shutting_down.connect(self._wake_for_signal)
        if self._watch is not None:  # before a model loads, which takes longer than a notice
            worker_shutting_down.connect(MACHINE_END.asked_to_stop)
            self._watch.start()
        try:
            self._engine.start(self.handover, lambda: probes.note(self._engine.trouble()))
        except PenstockError as error:
            # Celery would print a traceback, and end with another status.
            log.critical("this worker cannot start: %s", error)
            raise SystemExit(error.exit_status) from error
        self.limit = self._engine.running.slots()
        self._is_hosting = True
        probes.started()
        hub.call_repeatedly(BEAT_S, self.liveness.beat)

    def on_stop(self) -> None:
        """Warm shutdown, or the end of a cold one.

        Called again (a second signal) it ends the drain at once."""
        if not self._is_hosting:  # the engine could not start, and Celery ends the worker
            return
        if self._drain is not None:
            self._drain.hurry()
            return
        self.liveness.drain()
        self._drain = Drain(self, self._engine, self._hub, self._drain_seconds, MACHINE_END)
        self._drain.run()

    def on_terminate(self) -> None:
        self.on_stop()

    def finish(self, timeout_s: float) -> None:
        """Send the last events and conclusions, and metrics if time is left for them."""
        ends_at = monotonic() + timeout_s
        self._threads.stop()
        self.deliver()
        if self._consumer is not None and self._consumer.event_dispatcher is not None:
            ignore_errors(self._consumer, self._consumer.event_dispatcher.flush)
        if not self._leases.flush(timeout_s):
            log.warning(
                "Redis is out of reach: %d messages return when their lease ends", len(self._leases)
            )
        if self._watch is not None:
            self._watch.stop()
        closing = Thread(target=self._page.close, name="metrics-end", daemon=True)
        closing.start()
        closing.join(max(0.0, ends_at - monotonic()))

    def is_idle(self) -> bool:
        """Return whether no ordinary task is running."""
        return not self._threads.tags

    def connected(self, consumer: Any) -> None:
        self._consumer = consumer
        self.liveness.connected()

    def reconnecting(self) -> None:
        self.liveness.reconnecting()

    def flush(self) -> None:
        """Give back what the consumer has not passed on and forgets.

        It has lost its connection."""
        kept = self.handover.items.tags() | self._threads.tags
        self.handover.acks.flush()
        self._leases.conclude(
            [tag for tag in self._leases.tags() if tag not in kept], BrokerAction.GIVE_BACK
        )

    def grow(self, n: int = 1) -> None:
        self.limit += n
        self._engine.resize(self.limit)

    def shrink(self, n: int = 1) -> None:
        self.limit = max(1, self.limit - n)
        self._engine.resize(self.limit)

    # -- Celery's side: work -----------------------------------------------------------------------

    def apply_async(self, target: Any, args: Any = (), kwargs: Any = None, **options: Any) -> None:
        """Run a request: Celery passes bound methods of it as the callbacks."""
        request = options["accept_callback"].__self__
        if args[0] == TASK_NAME:
            self.handover.accept(request)
        else:
            self._threads.run(request, target, args, options)

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """Stop a revoked item, which Celery then acknowledges.

        In a cold shutdown Celery does not, and it is given back."""
        item = self.handover.withdrawals.revoke(pid)
        if item is not None:
            self._post(self._give_back_unless_acknowledged, item)

    def deliver(self) -> None:
        """Run the steps that other threads have posted.

        Called by the hub, and by the drain when the hub has stopped."""
        while self._calls:
            step = self._calls.popleft()
            try:
                step()
            except Exception:
                log.exception(
                    "a step of the pool failed because of an error in Penstock; the worker goes "
                    "on. Please report this"
                )
        self.handover.deliver()

    def give_back_all(self) -> int:
        """Return what is still here to its queue, without waiting for the engine."""
        left = self.handover.items.all()
        for item in left:
            self.handover.withdrawals.give_back(item)
        return len(left)

    def _give_back_unless_acknowledged(self, item: RunningItem) -> None:
        if not item.request.acknowledged:
            self.handover.withdrawals.give_back(item)

    def _may_rest(self) -> bool:
        """Return whether it may rest.

        It may if there is no room for messages, or an operator has cancelled every queue."""
        limit = self._consumer.qos.value if self._consumer is not None else 0
        return bool(limit and len(self._leases) >= limit) or not self.app.amqp.queues.consume_from

    # -- the thread that keeps the leases ----------------------------------------------------------

    def may_renew(self) -> bool:
        return self._engine.is_turning()

    def lost(self, tags: Sequence[str]) -> None:
        self._post(self.handover.withdrawals.lose, tags, self._leases)

    def late(self, action: BrokerAction, tags: Sequence[str]) -> None:
        self._post(self.handover.withdrawals.note_late, action, tags)

    # -- any thread --------------------------------------------------------------------------------

    def _noticed(self, notice: Notice) -> None:
        """Begin the drain for a notice, in the watch's thread.

        Not by a SIGTERM to itself: one that comes from outside at the same time would be lost in
        it.
        """
        MACHINE_END.noticed(notice, self._lane)
        state.should_stop = 0
        self._wake()

    def _wake_for_signal(self, **_: object) -> None:
        """End the poll that a signal has interrupted, in the signal's handler.

        The poll would wait on for its whole time (PEP 475). Another thread wakes it: this one may
        hold what waking takes."""
        Thread(target=self._wake, name="wake-for-signal", daemon=True).start()

    def _post(self, step: Callable[..., object], *arguments: Any, **_: Any) -> None:
        self._calls.append(partial(step, *arguments))
        self._wake()

    def _wake(self) -> None:
        self._hub.call_soon(self.deliver)

    # -- figures -----------------------------------------------------------------------------------

    def figures(self) -> Iterator[Sample]:
        """Yield the figures for Prometheus; from any thread."""
        lane, leases = self._lane, self._leases
        yield catalogue.HELD(len(leases), lane)
        yield catalogue.LEASES_LOST(self.handover.counts["lost-leases"], lane)
        yield catalogue.LEASES_RESTORED(leases.restored, lane)
        yield catalogue.DUPLICATES(leases.dropped, lane)
        if self._watch is not None:
            yield from self._watch.figures(lane)
        yield from self._engine.figures()

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()
        leases, handover = self._leases, self.handover
        info.update(
            {
                "items": len(handover.items),
                "acks": handover.acks.acked,
                "ack-groups": handover.acks.groups,
                "commits": handover.commits,
                "leases": len(leases),
                "renewals": leases.renewals,
                "duplicates-dropped": leases.dropped,
                "retries-put-off": leases.put_off,
                "restored": leases.restored,
                "event-share": round(self.sample.share, 4),
                **handover.counts,
                **self._engine.stats(),
            }
        )
        return info
