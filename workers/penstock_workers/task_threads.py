"""Ordinary Celery tasks, such as `penstock.submit`, in a few threads beside the items."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from celery.concurrency.base import apply_target

log = logging.getLogger(__name__)

THREADS = 4  # such tasks are rare, short, and wait for a database


class TaskThreads:
    """``post`` brings a call to the hub thread; all methods are the hub thread's."""

    def __init__(self, post: Callable[..., None], give_back: Callable[[Any], None]) -> None:
        self.tags: set[str] = set()  # delivery tags of what runs or waits here
        self._post = post
        self._give_back = give_back
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-task")

    def run(self, request: Any, target: Any, arguments: Any, options: dict[str, Any]) -> None:
        self.tags.add(request.message.delivery_tag)
        future = self._executor.submit(
            apply_target,
            target,
            arguments,
            callback=partial(self._post, options["callback"]),
            accept_callback=partial(self._post, options["accept_callback"]),
        )
        future.add_done_callback(partial(self._post, self._end, request))

    def stop(self) -> None:
        """What waits goes back; what runs is left to itself, and its message to the end of its lease."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _end(self, request: Any, future: Future[None]) -> None:
        self.tags.discard(request.message.delivery_tag)
        if future.cancelled():
            self._give_back(request.message)
        elif (error := future.exception()) is not None:
            log.error("task %s could not be run and is kept aside", request, exc_info=error)
            request.reject(requeue=False)
