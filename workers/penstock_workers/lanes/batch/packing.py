"""This machine packs one file at a time: for feeds, and again where a file is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from penstock_ledger import ProviderBatch
from penstock_ledger.model import Feed, Job
from penstock_producer.job.spec import JobSpec
from penstock_workers.lanes.batch.apis.provider import BatchProvider
from penstock_workers.lanes.batch.packed import PackedBatch, PackedFolder
from penstock_workers.lanes.batch.packer import Packer


class Packing:
    """The packed folder, used on the event loop but for ``sweep``, ``remove`` and ``rename``."""

    def __init__(self, packer: Packer, folder: PackedFolder) -> None:
        self._packer, self._folder = packer, folder
        self._one_at_a_time = asyncio.Lock()

    async def feed(
        self, job: Job, spec: JobSpec, feed: Feed, provider: BatchProvider, most: int | None
    ) -> tuple[Feed, int]:
        """Pack a window of a feed. Return the feed after it, and how many batches it made."""
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._packer.pack_feed, job, spec, feed, provider, most)

    async def remainders(
        self, job: Job, spec: JobSpec, feed: Feed, provider: BatchProvider, most: int | None
    ) -> int:
        """Pack remainders of a feed, and return how many batches they made."""
        async with self._one_at_a_time:
            return await asyncio.to_thread(
                self._packer.pack_remainders, job, spec, feed, provider, most
            )

    async def files(
        self, job: Job | None, spec: JobSpec | None, batch: ProviderBatch, provider: BatchProvider
    ) -> PackedBatch:
        """Return the files of a batch, packed again where they are gone and its job is there."""
        packed = self._folder.batch(batch.tag)
        if job is None or spec is None or packed.is_there:
            return packed
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._packer.files, job, spec, batch, provider)

    def sweep(self, open_tags: Callable[[], Collection[str]]) -> None:
        """Remove the files of batches that are over."""
        self._folder.sweep(open_tags())

    def remove(self, tag: str) -> None:
        self._folder.batch(tag).remove()

    def rename(self, tag: str, to: str) -> None:
        self._folder.rename(tag, to)

    def stop(self) -> None:
        """Throw away what is being packed: the worker ends."""
        self._packer.stopped.set()
