"""What a worker keeps of a job."""

from __future__ import annotations

import asyncio

import pytest

from penstock_producer import JobSpec
from penstock_workers.item.job_view import JobView
from penstock_workers.item.run import reading
from penstock_workers.item.run.reading import JobBook
from penstock_workers.settings import ProviderSettings


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
