"""The thread that computes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any

from penstock_workers.computing_thread import ComputingThread


class EncoderThread(Executor):
    """One call at a time, in their order.

    Unlike a ThreadPoolExecutor's, its thread is not waited for at exit."""

    def __init__(self, name: str = "penstock-encoder") -> None:
        self._given: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = (
            SimpleQueue()
        )  # bounded by the batcher
        ComputingThread(self._work, name).start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._given.put((lambda: fn(*args, **kwargs), future))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """After the call that it makes now, which is never waited for."""
        self._given.put(None)

    def _work(self) -> None:
        while (given := self._given.get()) is not None:
            call, future = given
            if not future.set_running_or_notify_cancel():
                continue
            try:
                said = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(said)
            del (
                given,
                call,
                future,
            )  # an error holds the tensors of its batch: not until the next one comes
