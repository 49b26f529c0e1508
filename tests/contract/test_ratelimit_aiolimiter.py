"""The private surface of aiolimiter that ``local.Bucket`` leans on."""

from __future__ import annotations

import asyncio

import pytest
from aiolimiter import AsyncLimiter

from penstock_ratelimit.local import Bucket
from penstock_ratelimit.testing import run_virtual


def test_aiolimiter_still_keeps_its_level_where_we_correct_it() -> None:
    """``_level`` counts what was taken, ``_leak`` brings it up to date, ``_wake_next`` looks at the
    waiters again."""

    async def main() -> None:
        bucket = AsyncLimiter(10, 1)
        await bucket.acquire(7)
        assert bucket._level == 7
        await asyncio.sleep(0.2)
        bucket._leak()
        assert bucket._level == pytest.approx(5)
        assert callable(bucket._wake_next)

    run_virtual(main())


def test_a_refund_wakes_who_waits() -> None:
    """A caller that waits for room goes as soon as a refund makes it, and a charge makes it wait
    longer."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        bucket = Bucket(10, 1)
        bucket.adjust(20)
        waiting = asyncio.create_task(bucket.wait_for(10))
        await asyncio.sleep(0.5)
        bucket.adjust(-10)
        await waiting
        assert loop.time() == pytest.approx(1.0, abs=1e-6)
        waiting = asyncio.create_task(bucket.wait_for(10))
        bucket.adjust(5)
        await waiting
        assert loop.time() == pytest.approx(1.5, abs=1e-6)

    run_virtual(main())
