"""An item whose body is a row of a table that is gone: its own dead letter, and nothing else
happens to its job."""

from __future__ import annotations

from attempts import make_runner

from penstock_producer.errors import RowChanged
from penstock_producer.job.spec import JobSpec
from penstock_workers.item.attempt import Attempt, Item
from penstock_workers.item.deliveries import Delivery
from penstock_workers.item.job_view import JobView
from penstock_workers.item.outcome import Dead, Outcome
from penstock_workers.settings import ProviderSettings


class Parts:
    """A job that is known, a table without the row, and starts that vouch for every item.

    No other part is asked."""

    def known(self, job_id: str, endpoint: str | None = None) -> JobView:
        return JobView(job_id, JobSpec(), ProviderSettings(), 1)

    async def fetch(self, item: Item) -> bytes:
        raise RowChanged(
            "table docs of sqlite:////d.db id 7: source_lost: The row that was here at submit is "
            "gone."
        )

    async def vouch(self, item: Item, job: JobView | None, outcome: Outcome) -> Outcome:
        return outcome


async def test_a_row_that_is_gone_is_that_document_s_dead_letter() -> None:
    """Settled as an attempt, so that the job's counters hear of it at once; no call is made and the
    job is not paused."""
    kwargs = {"v": 1, "job": "job", "gen": 1, "doc": "7", "ref": "7"}
    settled = await make_runner(Parts()).run(Delivery("job:7", kwargs, {}, queue="penstock.api"))
    assert isinstance(settled.item, Attempt)
    assert isinstance(settled.outcome, Dead)
    letter = settled.outcome.letter
    assert (letter.key.doc_id, letter.reason, letter.calls, letter.request) == (
        "7",
        "source_lost",
        0,
        b"",
    )
    assert "id 7: source_lost" in letter.last_error
