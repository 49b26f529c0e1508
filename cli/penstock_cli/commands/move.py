"""`penstock move`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from penstock_cli.errors import UsageProblem
from penstock_cli.job import options

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_ledger.model import Job


def move(
    job: options.JobName,
    lane: Annotated[
        str, typer.Argument(help="Where its documents go from now on.", metavar="LANE")
    ],
    reason: Annotated[
        str, typer.Option(help="Why, for those who look at the job.")
    ] = "moved by `penstock move`",
    state: options.StateOption = None,
) -> None:
    """Let a running job go on in another lane.

    What is done stays, and what is under way is not lost."""
    from penstock_cli.connect import books
    from penstock_ledger import BY_HAND, LaneMoves
    from penstock_producer.reporting.reasons import no_worker
    from penstock_producer.reporting.text import safe

    with books(state) as ledger:
        found = ledger.jobs.get(job)
        _check(ledger, found, lane)
        moves = LaneMoves(ledger.database)
        if moves.move(found.job_id, found.lane, lane, BY_HAND, reason, {}, now=time.time()) is None:
            raise UsageProblem(
                f"job {safe(found.job_key)} was moved or stopped just now; look at `penstock "
                "status`"
            )
        redis = ledger.redis_if_running()
        if redis is not None:
            redis.set_job_lane(ledger.jobs.get(found.job_id))
        typer.echo(f"{safe(found.job_key)} goes on in lane {lane}; it was in {found.lane}")
        missing = None if redis is None else no_worker(redis.workers(), lane)
        if missing is not None:
            typer.echo(missing.said)


def _check(ledger: Books, job: Job, lane: str) -> None:
    """Raises UsageProblem, and SpecError where the lane cannot do what the job asks."""
    from penstock_producer.accepting.acceptance import check_other_lane
    from penstock_producer.job.lanes import LANES, lanes_in_words, packs
    from penstock_producer.job.spec import JobSpec
    from penstock_producer.reporting.text import safe
    from penstock_producer.settings import ProducerSettings

    name = safe(job.job_key)
    if lane not in LANES:
        raise UsageProblem(f"there is no lane {safe(lane)}; lanes are {lanes_in_words()}")
    if lane == job.lane:
        raise UsageProblem(f"job {name} is in lane {lane} already")
    if job.state != "running":
        raise UsageProblem(
            f"job {name} is {job.state}; only one that is running can change its lane"
        )
    check_other_lane(JobSpec.accepted(job.spec), lane, ProducerSettings.load())
    if packs(lane) and any(not shard.exhausted for shard, _ in ledger.jobs.shards(job.job_id)):
        raise UsageProblem(
            f"the source of job {name} is read by several feeders, and documents of lane {lane} "
            "are packed by one; wait until all of it is read, or submit it with --feeders 1"
        )
