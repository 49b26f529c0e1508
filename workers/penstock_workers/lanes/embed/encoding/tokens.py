"""Tokenises beside the encoder, in one thread.

Whatever has gathered while the thread was busy goes in one call. One thread, because tokenizers
keep their settings for truncation in themselves; one call for many, because the fast ones spread a
list over all cores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

from penstock_workers.lanes.embed.encoding.buckets import TokenIds
from penstock_workers.lanes.embed.encoding.encoder import Encoder
from penstock_workers.lanes.scoring import Text

MAX_TEXTS_AT_ONCE = 1_024  # of different requests; bounds how long an urgent one waits for its turn
Wanted = tuple[Sequence[Text], "asyncio.Future[list[TokenIds]]"]


class Tokenising:
    """Bounded by its callers: each waits for what it has asked. On one event loop."""

    def __init__(self, encoder: Encoder, thread: Executor | None = None) -> None:
        self._encoder = encoder
        self._thread = thread or ThreadPoolExecutor(1, thread_name_prefix="penstock-tokens")
        self._wanted: list[Wanted] = []
        self._working: asyncio.Task[None] | None = None

    async def ids(self, texts: Sequence[Text]) -> list[TokenIds]:
        """Return the token ids of texts.

        Raises whatever the tokenizer raises at them."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[TokenIds]] = loop.create_future()
        self._wanted.append((texts, future))
        if self._working is None:
            self._working = loop.create_task(self._work(), name="tokenising")
        return await future

    async def trimmed(self, text: Text) -> TokenIds:
        """Return the tokens of the text's beginning, as many as the encoder takes."""
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._encoder.trim, text
        )

    async def close(self) -> None:
        if self._working is not None:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)
        for _, future in self._wanted:
            future.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        try:
            while self._wanted:
                await self._tokenise(self._next_few())
        finally:
            self._working = None

    def _next_few(self) -> list[Wanted]:
        count, texts = 0, 0
        for wanted, _ in self._wanted:
            if count and texts + len(wanted) > MAX_TEXTS_AT_ONCE:
                break
            count, texts = count + 1, texts + len(wanted)
        few, self._wanted = self._wanted[:count], self._wanted[count:]
        return [(wanted, future) for wanted, future in few if not future.done()]

    async def _tokenise(self, few: list[Wanted]) -> None:
        if not few:
            return
        texts = [text for wanted, _ in few for text in wanted]
        try:
            found = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._encoder.tokenise, texts
            )
        except Exception as error:
            await self._one_by_one(few, error)
            return
        except asyncio.CancelledError:
            for _, future in few:
                future.cancel()
            raise
        ids = iter(found)
        for wanted, future in few:
            mine = [next(ids) for _ in wanted]
            if not future.done():
                future.set_result(mine)

    async def _one_by_one(self, few: list[Wanted], error: Exception) -> None:
        """Tokenise texts one by one, so that one that the tokenizer refuses fails alone."""
        if len(few) > 1:
            for one in few:
                await self._tokenise([one])
        elif not few[0][1].done():
            few[0][1].set_exception(error)
