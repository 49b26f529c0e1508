"""What the shared quota holds back a job's provider for, and how a command ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_ledger.model import Job


def lift_provider(ledger: Books, job: Job) -> str:
    """End what the shared quota of the job's provider keeps of a hold or a pause; returns what to
    say, "" when nothing."""
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
        if not views or not (
            views[0].hold or views[0].pause_left_s > 0 or views[0].breaker is Breaker.OPEN
        ):
            return ""
        lift_hold(client, provider)
    what = (
        "hold" if views[0].hold else "pause" if views[0].pause_left_s > 0 else "rest after failures"
    )
    return f"the {what} of provider {provider} is over: requests start again within 2 s"
