"""Batches that are still at a provider when their job is over, as after a rescue: they are
cancelled, and end later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_cli.commandline import this_command
from penstock_producer.job.lanes import packs
from penstock_producer.reporting.words import counted_batches

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_cli.run.request import Plan
    from penstock_ledger.model import Job


def still_at_provider(ledger: Books, job: Job) -> int:
    """Batches whose answers are not all read and counted."""
    from penstock_ledger import BatchState

    return sum(
        one.batches for one in ledger.provider_batches(job) if one.state is not BatchState.SETTLED
    )


def has_batch_workers(plan: Plan) -> bool:
    """Whether this command starts workers that read them."""
    return any(packs(one.lane) for one in (plan.settings, *plan.beside))


def batches_left(plan: Plan, ledger: Books, job: Job) -> str | None:
    """What to say of them at the end of a run; None where there are none."""
    left = still_at_provider(ledger, job)
    if not left:
        return None
    again = (
        f"the same command reads them:  {this_command()}"
        if has_batch_workers(plan)
        else "a worker of their lane reads them"
    )
    return (
        f"{counted_batches(left)} of this job {'is' if left == 1 else 'are'} still at the "
        "provider. The results are complete without; what was answered there may be paid for, and "
        f"is not in the cost above. A little later, {again}"
    )
