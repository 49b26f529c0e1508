"""Ordinary Celery tasks, such as `penstock.submit`, in a few threads beside the items."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, KeysView, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

from celery.concurrency.base import apply_target
from celery.worker.state import task_ready

log = logging.getLogger(__name__)

THREADS = 4  # such tasks are rare, short, and wait for a database

TELL_S = 2.0  # of the shutdown time, whether Redis answers or not
LOST_MAX = 8  # threads that hang for good: each keeps what its task has read

Job = Callable[[], None]


class TaskThreads:
    """``post`` brings a call to the hub thread; all methods are the hub thread's.

    The threads are daemons: a task that hangs in a read must not keep the process from ending. One
    that hangs beyond its time limit is given up: its thread cannot be ended, so another takes its
    place, as often as ``LOST_MAX``.
    """

    def __init__(
        self,
        post: Callable[..., None],
        give_back: Callable[[Any], None],
        call_later: Callable[[float, Callable[[], None]], Any],
    ) -> None:
        self._post = post
        self._give_back = give_back
        self._call_later = call_later
        # by delivery tag: what runs or waits here; bounded by prefetch
        self._requests: dict[str, Any] = {}
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lost = 0  # threads whose task was given up and has not come back

    @property
    def tags(self) -> KeysView[str]:
        """Delivery tags of what runs or waits here."""
        return self._requests.keys()

    def run(self, request: Any, target: Any, arguments: Any, options: dict[str, Any]) -> None:
        self._requests[request.message.delivery_tag] = request
        self._jobs.put(partial(self._apply, request, target, arguments, options))
        self._staff()

    def _staff(self) -> None:
        """Start as many threads as there is work for.

        They are up to ``THREADS`` beside those that are lost."""
        while len(self._threads) - self._lost < min(THREADS, len(self._requests)):
            thread = threading.Thread(
                target=self._work, name=f"penstock-task-{len(self._threads)}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Send what has not ended back to its queue, and drop its result here.

        Tasks can be run again."""
        if self._requests:
            log.warning(
                "%d tasks did not end in time; they go back to their queues", len(self._requests)
            )
        returned = [request for request in self._requests.values() if not request.acknowledged]
        for request in returned:
            request.acknowledged = True  # it must not be acknowledged from here on
            task_ready(request)
            self._give_back(request.message)
        self._requests.clear()
        if returned:
            telling = threading.Thread(
                target=_tell_all, args=(returned,), name="penstock-task-end", daemon=True
            )
            telling.start()
            telling.join(TELL_S)

    def _work(self) -> None:
        while True:
            self._jobs.get()()

    def _apply(self, request: Any, target: Any, arguments: Any, options: dict[str, Any]) -> None:
        error: BaseException | None = None
        self._post(self._watch, request)
        try:
            apply_target(
                target,
                arguments,
                callback=partial(self._post, self._if_here, request, options["callback"]),
                accept_callback=partial(
                    self._post, self._if_here, request, options["accept_callback"]
                ),
            )
        except BaseException as raised:
            error = raised
        self._post(self._end, request, error)

    def _end(self, request: Any, error: BaseException | None) -> None:
        if not self._is_here(request):
            self._lost = max(0, self._lost - 1)  # it was given up, and its thread is back
            return
        del self._requests[request.message.delivery_tag]
        if error is not None:
            log.error("task %s could not be run and is set aside", request, exc_info=error)
            request.reject(requeue=False)

    # -- time limits -------------------------------------------------------------------------------

    def _watch(self, request: Any) -> None:
        """Start the time limit when the task starts; the sender's own time limit is ignored."""
        limit_s = getattr(request.task, "time_limit", None)
        if limit_s and self._is_here(request):
            self._call_later(limit_s, partial(self._give_up, request, limit_s))

    def _give_up(self, request: Any, limit_s: float) -> None:
        if not self._is_here(request):
            return
        del self._requests[request.message.delivery_tag]
        log.error(
            "task %s hangs beyond its limit of %g s and is given up; its thread is lost",
            request,
            limit_s,
        )
        # the sender gets a failure, and the broker an acknowledgement
        request.on_timeout(False, limit_s)
        self._lost += 1
        if self._lost > LOST_MAX:
            log.error(
                "%d threads hang in tasks: no more are started; restart this process", self._lost
            )
            self._lost = LOST_MAX
        self._staff()
        self._jobs.put(partial(_tell, request, "overdue", request.id, request.kwargs))

    def _is_here(self, request: Any) -> bool:
        """Return whether a task is still here.

        It was not given up, nor given back, nor is it another delivery of the same message."""
        return self._requests.get(request.message.delivery_tag) is request

    def _if_here(
        self, request: Any, callback: Callable[..., object], *arguments: Any, **more: Any
    ) -> None:
        """Ignore the result of a task that was given up or has returned to its queue."""
        if self._is_here(request):
            callback(*arguments, **more)


def _tell_all(returned: Sequence[Any]) -> None:
    for request in returned:
        _tell(request, "given_back", request.id)


def _tell(request: Any, what: str, *arguments: Any) -> None:
    """Call a method that door tasks have, and others do not."""
    listener = getattr(request.task, what, None)
    if listener is not None:
        listener(*arguments)
