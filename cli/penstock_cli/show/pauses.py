"""A pause as people need it: when it ends by itself, and how to end it now."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING

from penstock_cli.show.text import duration

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_ledger.model import Job


def ends_by_itself(job: Job) -> bool:
    """A paused job that resumes by itself: its provider said how long to wait."""
    return job.state == "paused" and job.resume_at is not None


def pause_lines(job: Job, option: str, now: float | None = None) -> list[str]:
    """What to say of a paused job below its reason; nothing of others. ``option`` is repeated in the command shown."""
    if job.state != "paused":
        return []
    command = f"penstock resume {shlex.quote(job.job_key)}{option}"
    if job.resume_at is None:
        return [f"it waits for a person: remove the reason, then:  {command}"]
    left = max(0.0, job.resume_at - (time.time() if now is None else now))
    at = time.strftime("%H:%M:%S", time.localtime(job.resume_at))
    return [f"it goes on by itself at {at} (in {duration(left)}); to go on now:  {command}"]


def lift_provider(ledger: Books, job: Job) -> str:
    """End what the shared quota of the job's provider keeps of a hold or a pause; returns what to say, "" when nothing."""
    import redis

    from penstock_ledger import RedisAddress
    from penstock_ratelimit.for_penstock import Breaker, lift_hold, read_quotas
    from penstock_workers.settings import DEFAULT_PROVIDER

    if ledger.redis_if_running() is None or ledger.redis_url is None:
        return ""
    provider = str(job.spec.get("provider", DEFAULT_PROVIDER))
    client: redis.Redis = RedisAddress.parse(ledger.redis_url).connect()
    with client:
        views = read_quotas(client, quota_ids=[provider])
        if not views or not (views[0].hold or views[0].pause_left_s > 0 or views[0].breaker is Breaker.OPEN):
            return ""
        lift_hold(client, provider)
    what = "hold" if views[0].hold else "pause" if views[0].pause_left_s > 0 else "rest after failures"
    return f"the {what} of provider {provider} is over: requests start again within 2 s"
