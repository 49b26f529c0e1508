"""Blocking calls beside the event loop, in threads that the end of the process does not wait
for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """As ``asyncio.to_thread``, whose threads are waited for at exit: a bucket may not answer for
    minutes."""
    future: Future[T] = Future()
    Thread(target=_work, args=(call, future), name="penstock-files", daemon=True).start()
    return await asyncio.wrap_future(future)


def _work(call: Callable[[], T], future: Future[T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        said = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(said)
