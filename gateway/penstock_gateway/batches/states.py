"""The task that brings batches forward: it looks for those with a step to do, and does it under a
lease."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from penstock_gateway.backend import Backend
from penstock_gateway.batches.steps import Steps, Stopped
from penstock_gateway.refused import Refused
from penstock_ledger import DoorBatchStore, LeasedBatch, PenstockError

__all__ = ["BatchStates"]

log = logging.getLogger("penstock.gateway.batches")

LOOK_MAX: Final = 100  # batches that one look finds
PAUSE_S: Final = 5.0  # after a step that failed, as where files cannot be written


class BatchStates:
    """One of them in each process of the doors; they share the batches by their leases."""

    async def run(self, backend: Backend) -> None:
        door = backend.settings.gateway.batches
        store, stopping = DoorBatchStore(backend.database), threading.Event()
        threads = ThreadPoolExecutor(door.steps, thread_name_prefix="batches")
        owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._under_way: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                for batch_id in await backend.run(store.due, LOOK_MAX):
                    if len(self._under_way) >= door.steps:
                        break
                    if batch_id in self._under_way:
                        continue
                    leased = await backend.run(store.lease, batch_id, owner, door.lease_s)
                    if leased is not None:
                        step = self._step(backend, store, Steps(backend, stopping), leased, threads)
                        self._under_way[batch_id] = asyncio.create_task(step)
                backend.round_done(self)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(backend.batch_made.wait(), door.interval_s)
                backend.batch_made.clear()
        finally:
            stopping.set()
            await asyncio.to_thread(threads.shutdown)
            await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    async def _step(
        self,
        backend: Backend,
        store: DoorBatchStore,
        steps: Steps,
        leased: LeasedBatch,
        threads: ThreadPoolExecutor,
    ) -> None:
        batch, ttl_s = leased.batch, backend.settings.gateway.batches.lease_s
        done, pause_s = asyncio.get_running_loop().run_in_executor(threads, steps.step, leased), 0.0
        result = "failed"
        try:
            while not done.done():
                await asyncio.wait([done], timeout=ttl_s / 3)
                if not done.done() and not await backend.run(store.renew, leased, ttl_s):
                    steps.give_up()  # another process has it: what this one still writes is refused
            await done
            result = "done"
        except Stopped:
            result = "stopped"
        except (PenstockError, Refused) as error:
            pause_s = PAUSE_S
            log.warning("batch %s stays %s for now: %s", batch.batch_id, batch.state, error)
        except Exception:
            pause_s = PAUSE_S
            log.exception(
                "a step of batch %s, which is %s, has failed; it is tried again",
                batch.batch_id,
                batch.state,
            )
        finally:
            self._under_way.pop(batch.batch_id, None)
            backend.metrics.batch_steps.labels(batch.state.value, result).inc()
        await backend.run(store.release, leased, pause_s)
