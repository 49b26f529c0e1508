"""What a worker keeps of a job."""

from __future__ import annotations

import asyncio
import weakref

import pytest

from penstock_producer import JobSpec
from penstock_workers.item.job_view import JobView
from penstock_workers.item.run import reading
from penstock_workers.item.run.reading import JobBook
from penstock_workers.settings import ProviderSettings

SPEC = JobSpec(prompt="{text}", model="m")


async def test_a_job_that_no_item_asks_for_any_more_is_forgotten() -> None:
    """It has ended, most likely, and its prompt may have a megabyte. One that items ask for stays,
    however many others come and go; what is needed again is read again."""
    now, read = 0.0, list[str]()

    def look(job_id: str, endpoint: str | None = None) -> JobView:
        read.append(job_id)
        return JobView(job_id, SPEC.model_copy(), ProviderSettings(), 1)

    book = JobBook(look, lambda: now)
    specs = list[weakref.ref[JobSpec]]()
    await book.get("long")
    for minute in range(60):
        now = 60.0 * minute
        specs.append(weakref.ref((await book.get(f"short-{minute}")).spec))
        assert book.known("long") is not None
    held = [minute for minute, spec in enumerate(specs) if spec() is not None]
    assert held == list(range(held[0], 60))
    assert len(held) <= 2 * reading.UNASKED_S / 60.0 + 1
    assert read.count("long") == 1
    await book.get("short-0")
    assert read.count("short-0") == 2


async def test_no_more_jobs_are_kept_than_that_many_however_fast_they_come() -> None:
    """The newest are kept, and as many as half of them at least."""
    specs = list[weakref.ref[JobSpec]]()

    def look(job_id: str, endpoint: str | None = None) -> JobView:
        spec = SPEC.model_copy()
        specs.append(weakref.ref(spec))
        return JobView(job_id, spec, ProviderSettings(), 1)

    book = JobBook(look, lambda: 0.0)
    for number in range(2 * reading.JOBS_KEPT):
        await book.get(f"job-{number}")
    held = sum(spec() is not None for spec in specs)
    assert reading.JOBS_KEPT // 2 <= held <= reading.JOBS_KEPT


async def test_a_service_tier_that_control_has_chosen_is_seen_without_a_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job whose tier may change is read anew now and then, beside its items, which go on with
    what is known; so they do where SQL is away. Others are read once."""
    monkeypatch.setattr(reading, "TIER_LOOK_S", 0.0)
    read, tiers = list[str](), {"auto": "flex", "fixed": "flex"}
    is_away = False

    def look(job_id: str, endpoint: str | None = None) -> JobView:
        read.append(job_id)
        if is_away:
            raise OSError("SQL is away")
        spec = JobSpec.from_json({"prompt": "{text}", "model": "m", "tier": tiers[job_id]})
        return JobView(job_id, spec, ProviderSettings(), 1, changes_tier=job_id == "auto")

    async def tier_of(job_id: str) -> str | None:
        """As the next item sees it, and then what is read meanwhile has come."""
        view = book.known(job_id)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)
        return None if view is None else view.spec.tier

    book = JobBook(look)
    for job_id in tiers:
        assert (await book.get(job_id)).spec.tier == "flex"
    tiers |= {"auto": "standard", "fixed": "standard"}
    # the first look says when the next one is due
    for _ in range(2):
        assert [await tier_of(job_id) for job_id in tiers] == ["flex", "flex"]
    assert [await tier_of(job_id) for job_id in tiers] == ["standard", "flex"]
    is_away = True
    assert [await tier_of("auto") for _ in range(3)] == ["standard"] * 3
    assert read.count("fixed") == 1
