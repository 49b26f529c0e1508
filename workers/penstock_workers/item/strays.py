"""Items that no feed has put into the queue: what becomes of them. They are rare, so SQL may be asked about each.

A job's window holds every document that was fed and has no outcome, through retries and pauses, so an item of a document
that is neither there nor finished was not sent by the job's feed. There is one honest way to such an item: Redis forgot, the
worker held the message from before, and the feed, which starts again, has not come to the document yet. It will.
"""

from __future__ import annotations

from penstock_ledger import JobStore
from penstock_ledger.model import ItemKey
from penstock_workers.item.outcome import Outcome, Skipped, Unreadable

_SHOWN_CHARS = 80  # of an id that a stranger chose


class Strays:
    """Called on the thread of the begins. Raises what the database raises."""

    def __init__(self, jobs: JobStore) -> None:
        self._jobs = jobs

    def judge(self, key: ItemKey, *, rebuilt: bool) -> Outcome:
        """For an item that is in no window and has no outcome; ``rebuilt``: Redis was, not long ago."""
        job_id, generation, doc_id = key
        if all(feed.generation != generation for feed in self._jobs.feeds(job_id)):
            return Unreadable(f"job {job_id[:_SHOWN_CHARS]!r} has no generation {generation}; nothing was sent for it")
        if rebuilt:
            return Skipped("Redis was rebuilt and does not know it; the feed of its job sends it again")
        return Unreadable(
            f"document {doc_id[:_SHOWN_CHARS]!r} was not fed to generation {generation} of job {job_id}: it is not in the job's "
            "source, or was put into the queue by something else than a feed; nothing was sent for it"
        )
