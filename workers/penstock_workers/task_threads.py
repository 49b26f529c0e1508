"""Ordinary Celery tasks, such as `penstock.submit`, in a few threads beside the items."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, KeysView
from functools import partial
from queue import SimpleQueue
from typing import Any

from celery.concurrency.base import apply_target
from celery.worker.state import task_ready

log = logging.getLogger(__name__)

THREADS = 4  # such tasks are rare, short, and wait for a database

Job = Callable[[], None]


class TaskThreads:
    """``post`` brings a call to the hub thread; all methods are the hub thread's.

    The threads are daemons: a task that hangs in a read must not keep the process from ending.
    """

    def __init__(self, post: Callable[..., None], give_back: Callable[[Any], None]) -> None:
        self._post = post
        self._give_back = give_back
        self._requests: dict[str, Any] = {}  # by delivery tag: what runs or waits here; bounded by prefetch
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    @property
    def tags(self) -> KeysView[str]:
        """Delivery tags of what runs or waits here."""
        return self._requests.keys()

    def run(self, request: Any, target: Any, arguments: Any, options: dict[str, Any]) -> None:
        self._requests[request.message.delivery_tag] = request
        self._jobs.put(partial(self._apply, request, target, arguments, options))
        if len(self._threads) < min(THREADS, len(self._requests)):
            thread = threading.Thread(target=self._work, name=f"penstock-task-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """What has not ended goes back to its queue, and what it still does here is in vain: tasks can be run again."""
        if self._requests:
            log.warning("%d tasks did not end in time; they go back to their queues", len(self._requests))
        for request in self._requests.values():
            if not request.acknowledged:
                request.acknowledged = True  # from here on nobody may acknowledge it
                task_ready(request)
                self._give_back(request.message)
        self._requests.clear()

    def _work(self) -> None:
        while True:
            self._jobs.get()()

    def _apply(self, request: Any, target: Any, arguments: Any, options: dict[str, Any]) -> None:
        error: BaseException | None = None
        try:
            apply_target(
                target,
                arguments,
                callback=partial(self._post, options["callback"]),
                accept_callback=partial(self._post, options["accept_callback"]),
            )
        except BaseException as raised:
            error = raised
        self._post(self._end, request, error)

    def _end(self, request: Any, error: BaseException | None) -> None:
        here = self._requests.pop(request.message.delivery_tag, None)
        if here is not None and error is not None:
            log.error("task %s could not be run and is kept aside", request, exc_info=error)
            request.reject(requeue=False)
