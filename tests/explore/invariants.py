"""What must be true: after each write to SQL, and once the world is quiet.

They are looked at with a connection of their own, so that no rule of the product is asked whether
it holds.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from explore.actors import COST, GUESS, Provider, Worker, twin
from explore.batches import Batches
from explore.databases import Looks
from explore.scheduler import EPOCH, Actor, Call, Fate, Process, Violation, World
from penstock_ledger.model import ItemKey, JobState
from penstock_workers.item.attempt import Attempt
from penstock_workers.lane_changes import LaneChangeSettings

G1: Final = "G1: each document has one visible outcome"
G2: Final = "G2: an outcome never changes"
G3: Final = "G3: no call is made again without a cause"
G4: Final = "G4: work goes on by itself"
MONEY: Final = "no dollar is unbooked"
GROWS: Final = "money only grows"
BUDGET: Final = "no budget is passed"
STATES: Final = "what has ended or is being cancelled does not run again"
REBUILT: Final = "a Redis that came back is rebuilt"
ORPHAN: Final = "no batch is orphaned"
PLANNED: Final = "a planned time starts one job"
PURGED: Final = "nothing is left of a job that was purged"
ENDED: Final = "nothing of a job that has ended is called"
CAUSE: Final = "no item is suspected without a cause"
LEADER: Final = "only the leader of a feed moves its cursor"

FINAL: Final = tuple(state for state in JobState if state.final)
SCHEDULED: Final = "nightly"
"""How the keys of jobs begin that start themselves."""

ACCOUNT: Final = """
SELECT coalesce(sum(cost_microusd), 0) FROM (
    SELECT job_id, cost_microusd FROM tallies UNION ALL SELECT job_id, cost_microusd FROM paid_beside
    UNION ALL SELECT job_id, cost_microusd FROM batch_remainders
    UNION ALL SELECT job_id, cost_microusd FROM spending
) WHERE job_id = ?
"""
HANDED_OVER: Final = """
SELECT tag, remote_id, job_id, generation FROM provider_batches WHERE handed_at IS NOT NULL
AND NOT (state IN ('ended', 'collected') AND missing IS NULL AND coalesce(lease_until, 0) > ?)
"""
"""Batches whose documents went on without them, but for those whose answers are read."""
LEFT_AT: Final = "SELECT max(at) FROM lane_moves WHERE job_id = ? AND before = 'batch'"
OUTCOMES: Final = "SELECT doc_id FROM outcomes WHERE job_id = ? AND generation = ?"
MOVING_S: Final = LaneChangeSettings().moving_s


class Invariants:
    """Looks at the database of one world."""

    def __init__(
        self,
        world: World,
        provider: Provider,
        batches: Batches,
        looks: Looks,
        workers: Sequence[Worker],
    ) -> None:
        self._world, self._provider, self._workers = world, provider, workers
        self._batches = batches
        self._sql = looks
        self._outcomes: dict[tuple[str, int, str], bytes] = {}
        self._fences: dict[tuple[str, int], int] = {}
        self._cursors: dict[tuple[str, int], str] = {}
        self._states: dict[str, tuple[str, int]] = {}  # and generations, by job
        self._settled = set[str]()  # the numbers of batches at the provider
        self._handed_over = set[str]()  # tags of batches whose documents went on without them
        self._accounts: dict[str, int] = {}
        self._held: Counter[str] = Counter()  # by documents: how often who held one has died
        # counted, and no process has heard of it, or could take it back
        self._lost_starts = 0
        self._causes: Counter[str] = Counter()  # for another call, by document
        self._beside: Counter[str] = Counter()  # answers beyond a budget, by key of job
        self._generations: Counter[str] = Counter()  # in which a document had an outcome
        self.purged: set[str] = set()  # keys of jobs that may be gone
        self.twins: set[str] = set()  # keys of jobs that have equal requests, which are sent once
        self.budgets: dict[str, int] = {}  # by key of job, the largest that it was given
        self.tenants_budget: int | None = None  # of all jobs together
        self.keys_of: Callable[[str], set[str]] = lambda job_id: set()  # that Redis has
        self.left: dict[str, set[str]] = {}  # keys of jobs just after their purge
        self.forgot_at = -1.0  # when Redis lost data last
        # of workers and documents: claimed when, may be called since, claimed by another since
        self._claimed_at: dict[tuple[Worker, str], float] = {}
        self._may_call = set[tuple[Worker, str]]()
        self._shared = set[tuple[Worker, str]]()
        self._ended_at: dict[str, float] = {}  # by job
        # of which job, and when
        self._began: dict[tuple[Process, str], tuple[str, float]] = {}
        self._keys: dict[str, str] = {}  # of jobs, by their ids

    def close(self) -> None:
        self._sql.close()

    # -- after each step ---------------------------------------------------------------------------

    def after_step(self, actor: Actor, call: Call, fate: Fate) -> None:
        """Look at what a write has changed."""
        is_failed = fate in (Fate.LOST, Fate.REFUSED)
        if (call.what == "ItemScripts.begin" and fate is Fate.LOST) or (
            call.what == "ItemScripts.put_off" and actor.what == "begin" and is_failed
        ):
            self._lost_starts += 1
        if call.store != "sql" or not call.what.endswith("writes") or fate is Fate.REFUSED:
            return
        try:
            self._look_at_outcomes()
            self._look_at_feeds(actor.process)
            self._look_at_accounts()
            if self._batches.made:
                self._note_settled()
            if call.what == "ProviderBatchStore.hand_over writes":
                self._note_handed_over(actor.process)
        except Violation as violation:
            self._world.violation = self._world.violation or violation

    def _look_at_outcomes(self) -> None:
        seen, keys, generations = {}, self._jobs(), Counter[str]()
        for job_id, generation, doc_id, *outcome in self._sql.execute(
            "SELECT job_id, generation, doc_id, kind, reason, body, cost_microusd FROM outcomes"
        ):
            seen[job_id, generation, doc_id] = hashlib.blake2b(
                repr(outcome).encode(), digest_size=8
            ).digest()
            generations[self._asked(job_id, doc_id)] += 1
        self._generations |= generations
        for key, digest in self._outcomes.items():
            if keys.get(key[0]) not in self.purged and seen.get(key) != digest:
                raise Violation(G2, f"{key} was {'lost' if key not in seen else 'changed'}")
        self._outcomes = seen
        rows = self._sql.execute("SELECT job_id, state, total, generation FROM jobs").fetchall()
        for job_id in self._states.keys() - {row[0] for row in rows}:  # it was purged
            self._ended_at.setdefault(job_id, self._world.now)
        for job_id, state, total, generation in rows:
            self._look_at_state(job_id, state, generation)
            if keys[job_id] not in self.purged and state in (
                JobState.COMPLETED,
                JobState.CANCELLED,
            ):
                visible = len({key[2] for key in seen if key[0] == job_id})
                if visible != total:
                    raise Violation(G1, f"{job_id} is {state} with {visible} of {total} documents")

    def _look_at_state(self, job_id: str, state: str, generation: int) -> None:
        before, of = self._states.get(job_id, (state, generation))
        self._states[job_id] = state, generation
        if not JobState(state).final:
            self._ended_at.pop(job_id, None)
        else:
            self._ended_at.setdefault(job_id, self._world.now)
        ends = FINAL if JobState(before).final else (*FINAL, JobState.CANCELLING)
        if before in (*FINAL, JobState.CANCELLING) and state not in ends and generation == of:
            raise Violation(STATES, f"{job_id} was {before} and is {state}")

    def _note_settled(self) -> None:
        self._settled.update(
            remote_id
            for (remote_id,) in self._sql.execute(
                "SELECT remote_id FROM provider_batches WHERE state = 'settled'"
            )
        )

    def _note_handed_over(self, process: Process) -> None:
        """Note another call for each document of batches whose job waits for them no longer.

        It may stop waiting once it has left their lane for as long as is said, and never for
        answers that are read by now, or for documents that have an outcome."""
        now = EPOCH + self._world.now
        for tag, remote_id, *of in self._sql.execute(HANDED_OVER, (now,)).fetchall():
            if tag in self._handed_over:
                continue
            self._handed_over.add(tag)
            (left_at,) = self._sql.execute(LEFT_AT, of[:1]).fetchone()
            if now + process.drift_s < left_at + MOVING_S:
                continue
            ended = {self._asked(of[0], doc_id) for (doc_id,) in self.look(OUTCOMES, *of)}
            self._batches.is_waited_for_no_longer(tag, remote_id, ended)

    def _look_at_feeds(self, process: Process) -> None:
        for job_id, generation, fence, owner, cursor in self._sql.execute(
            "SELECT job_id, generation, fence, owner, cursor FROM feeds"
        ):
            feed = (job_id, generation)
            if fence < self._fences.get(feed, 0):
                raise Violation(LEADER, f"the fence of {feed} went back to {fence}")
            moved = cursor != self._cursors.get(feed, cursor)
            if (
                moved
                and cursor not in ("", "{}")
                and owner
                not in (
                    process.name,
                    f"{process.name}-batch",
                    None,
                )
            ):
                raise Violation(LEADER, f"{process.name} moved {feed}, which {owner} leads")
            self._fences[feed], self._cursors[feed] = fence, cursor

    def _look_at_accounts(self) -> None:
        for job_id, key in self._jobs().items():
            booked = self._booked(job_id)
            if booked < self._accounts.get(job_id, 0):
                raise Violation(GROWS, f"{job_id} had {self._accounts[job_id]} and has {booked}")
            self._accounts[job_id] = booked
            budget, beside = self.budgets.get(key), COST * self._beside[key]
            if budget is not None and booked > budget + beside:
                raise Violation(BUDGET, f"{key} has booked {booked} of {budget}")
        budget, spent = self.tenants_budget, sum(self._accounts.values())
        if budget is not None and spent > budget + COST * self._beside.total():
            raise Violation(BUDGET, f"the tenant has booked {spent} of {budget}")

    def _booked(self, job_id: str) -> int:
        return int(self._sql.execute(ACCOUNT, (job_id,)).fetchone()[0])

    def state_of(self, job_id: str) -> str:
        return str(self.look("SELECT state FROM jobs WHERE job_id = ?", job_id)[0][0])

    def has_moved(self, job_id: str) -> bool:
        return bool(self.look("SELECT 1 FROM lane_moves WHERE job_id = ?", job_id))

    def _jobs(self) -> dict[str, str]:
        """Return the names of all jobs that there were, by their ids.

        That of a job that was planned is the name of its plan: their documents are the same."""
        for job_id, key in self._sql.execute("SELECT job_id, job_key FROM jobs"):
            self._keys[job_id] = SCHEDULED if key.startswith(SCHEDULED) else key
        return self._keys

    # -- causes of another call --------------------------------------------------------------------

    def died(self, process: Process) -> None:
        """Note the calls that a dying process has made, and whose outcome is not in SQL."""
        for document in self._open_calls(process):
            self._causes[document] += 1
        if isinstance(process, Worker):
            self._held.update(self._about(self._document(tag)) for tag in process.leases.tags())

    def suspected(self, attempt: Attempt) -> None:
        """See that an item which is tried apart was in flight when something died or hung.

        Whose start may have been counted twice, since its answer was lost, counts as such."""
        document = self._asked(attempt.key.job_id, attempt.key.doc_id)
        causes = self._causes[document] + self._held[document] + self._lost_starts
        if causes < attempt.crashes:
            self._world.violation = self._world.violation or Violation(
                CAUSE, f"{document} is tried apart for {attempt.crashes} crashes"
            )

    def claimed(self, tag: str, worker: Worker) -> None:
        """Note that a message is claimed which another process that lives may hold, too."""
        held = worker, self._document(tag)
        self._claimed_at[held] = self._world.now
        if not self._is_calling(
            worker, self._about(held[1])
        ):  # else it is a copy of what is called
            self._may_call.discard(held)
        self._shared.discard(held)
        for other in self._workers:
            if other is not worker and not other.is_dead and tag in other.leases:
                self.let_go(other, [tag])

    def let_go(self, worker: Worker, tags: Sequence[str]) -> None:
        """Note that messages which a process holds are another's, or will be.

        Calls that it makes by then, or was allowed to make, are a cause for another one. What holds
        and has not begun is no cause."""
        for tag in tags:
            held = worker, self._document(tag)
            if held in self._may_call:
                self._may_call.discard(held)
                self._excuse(held[1])
            else:
                self._shared.add(held)

    def began(self, worker: Worker, key: ItemKey, is_sure: bool) -> None:
        """Note that a process may call for an item.

        Where another has claimed the item since, it must not once Redis was rebuilt after it had
        forgotten the lease. Else it may be late: it was frozen just before this."""
        held = worker, f"{self._name(key.job_id)}-{key.doc_id}"
        self._may_call.add(held)
        self._began[worker, self._about(held[1])] = key.job_id, self._world.now
        is_rebuilt = is_sure and self.forgot_at > self._claimed_at.get(held, 0.0)
        if held in self._shared and not is_rebuilt:
            self._excuse(held[1])

    def asked(self, process: Process, document: str) -> None:
        """See that a call that is made is of a job that had not ended when it might begin."""
        job_id, at = self._began.get((process, document), ("", 0.0))
        if at > self._ended_at.get(job_id, at):
            self._world.violation = self._world.violation or Violation(
                ENDED, f"{process.name} asks about {document}"
            )

    def _excuse(self, document: str) -> None:
        """Allow one more call about what is asked for a document.

        What is reserved for the one before is given back as for those of the dead, and its answer
        may come all the same."""
        self._causes[self._about(document)] += 1
        self._beside[document.partition("-")[0]] += 1

    def _is_calling(self, worker: Worker, document: str) -> bool:
        """Return whether a process waits for an answer, or for one to be stored."""
        return any(
            one.by is worker
            and one.document == document
            and (not one.is_over or (one.heard and not one.is_refused))
            for one in self._provider.sent
        )

    def _document(self, tag: str) -> str:
        job_id, _, doc_id = tag.partition(":")
        return f"{self._name(job_id)}-{doc_id.partition('~')[0]}"

    def _name(self, job_id: str) -> str | None:
        return self._keys.get(job_id) or self._jobs().get(job_id)

    def _asked(self, job_id: str, doc_id: str) -> str:
        return self._about(f"{self._name(job_id)}-{doc_id}")

    def _about(self, document: str) -> str:
        """Return what is asked for a document, which is its own name unless it has a twin."""
        name, _, doc_id = document.partition("-")
        return f"{name}-{twin(doc_id)}" if name in self.twins else document

    def _open_calls(self, process: Process) -> list[str]:
        ended = self.ended()
        return [
            one.document
            for one in self._provider.sent
            # a batch outlives who has made it
            if one.by is process
            and not one.batch
            and (one.document not in ended or self._has_twin(one.document))
        ]

    def _has_twin(self, document: str) -> bool:
        """Return whether the other one of two equal requests may be under way."""
        return document.partition("-")[0] in self.twins

    def ended(self) -> set[str]:
        return {
            self._asked(job_id, doc_id)
            for job_id, doc_id in self._sql.execute(
                "SELECT job_id, doc_id FROM outcomes WHERE superseded_by IS NULL"
            )
        }

    # -- in the end --------------------------------------------------------------------------------

    def all_over(self) -> bool:
        """Return whether every job has ended, and every batch, also of a job that went on."""
        return not self._sql.execute(
            "SELECT 1 FROM jobs WHERE state NOT IN ('completed', 'cancelled', 'failed') "
            "UNION ALL SELECT 1 FROM provider_batches WHERE state != 'settled'"
        ).fetchone()

    def in_the_end(self, documents: dict[str, int]) -> None:
        """Look at what became of each job, by its key and its number of documents."""
        for job_id, key in self._jobs().items():
            if key not in self.purged:
                self._look_at_end(job_id, documents[key])
        self._look_at_batches()
        self._look_at_calls()
        self._look_at_money()
        self._look_at_plans()
        self._look_at_purged()

    def _look_at_end(self, job_id: str, number: int) -> None:
        visible: Counter[str] = Counter()
        for (doc_id,) in self._sql.execute(
            "SELECT doc_id FROM outcomes WHERE job_id = ? AND superseded_by IS NULL", (job_id,)
        ):
            visible[doc_id] += 1
        twice = [doc_id for doc_id, times in visible.items() if times > 1]
        if twice:
            raise Violation(G1, f"{job_id}: {', '.join(twice)} have several")
        if len(visible) != number:
            raise Violation(G1, f"{job_id} has {len(visible)} of {number} documents")

    def _look_at_calls(self) -> None:
        asked = Counter(one.document for one in self._provider.sent)
        for document, calls in asked.items():
            allowed = (
                max(1, self._generations[document])
                + self._provider.again[document]
                + self._causes[document]
            )
            if calls > allowed:
                raise Violation(
                    G3,
                    f"{document} was asked about {calls} times, and there are causes for {allowed}",
                )

    def _look_at_batches(self) -> None:
        """See that each batch of the provider is known and settled, or cancelled as a stray.

        A process that was frozen as it created a batch may find that another has done it since; it
        cancels its own, unless it dies over that, or leaves it to the process that leads
        the batch by now, whose list may not show it yet. So much is paid twice for a lease that was lost.
        """
        known = {
            tag: (state, remote_id)
            for tag, state, remote_id in self._sql.execute(
                "SELECT tag, state, remote_id FROM provider_batches"
            )
        }
        for number, batch in enumerate(self._batches.made):
            state, remote_id = known.get(batch.tag, (None, None))
            self._batches.bill(number)
            if remote_id == str(number):
                if state != "settled":
                    raise Violation(ORPHAN, f"batch {batch.tag} is {state}")
            elif batch.cancelled_at is not None or batch.by.is_dead:
                for _, sent in batch.lines:
                    self._causes[sent.document] += 1
                    sent.is_stray = True
            elif str(number) not in self._settled:  # else its job was purged
                raise Violation(ORPHAN, f"no process knows batch {number} of {batch.tag}")

    def _look_at_money(self) -> None:
        """See that what was heard by a process that did not die with it is booked.

        What batches have answered is there until it is read."""
        booked: Counter[str] = Counter()
        for job_id, name in self._jobs().items():
            booked[name] += self._booked(job_id)
        for name, sum_of in booked.items():
            sent = [one for one in self._provider.sent if one.document.startswith(f"{name}-")]
            most = sum(GUESS if one.is_gone else one.cost for one in sent if one.billed)
            if sum_of > most:
                raise Violation(MONEY, f"{name} has booked {sum_of} of {most} that were billed")
            least = sum(
                one.cost
                for one in sent
                if not one.is_stray
                and (one.billed if one.batch else one.heard and not one.by.is_dead)
            )
            if sum_of < least:
                raise Violation(MONEY, f"{name} has booked {sum_of} of {least} that were answered")

    def _look_at_plans(self) -> None:
        """See that each job that was planned is the one of its time.

        One of the next time may be there: who began it died, and the plan was paused then."""
        at = self._sql.execute("SELECT next_at FROM schedules").fetchone()
        following = "" if at is None else time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(at[0]))
        jobs = self._sql.execute(
            "SELECT job_key FROM jobs WHERE job_key LIKE ? AND job_key != ? AND job_id NOT IN "
            "(SELECT started_job FROM firings WHERE started_job IS NOT NULL)",
            (f"{SCHEDULED}@%", f"{SCHEDULED}@{following}"),
        ).fetchall()
        if jobs:
            raise Violation(PLANNED, f"{jobs} were started for no time")

    def _look_at_purged(self) -> None:
        """See that nothing has come back of a job that was purged, but for its account."""
        there = {job_id for (job_id,) in self._sql.execute("SELECT job_id FROM jobs")}
        for job_id in self._jobs().keys() - there:
            for table in ("outcomes", "feeds", "tallies", "paid_beside", "batch_remainders"):
                if self.look(f"SELECT 1 FROM {table} WHERE job_id = ?", job_id):
                    raise Violation(PURGED, f"{job_id} was purged and is in {table}")
            if job_id in self.left and (new := self.keys_of(job_id) - self.left[job_id]):
                raise Violation(PURGED, f"{job_id} was purged and has {', '.join(sorted(new))}")

    def look(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._sql.execute(query, values).fetchall()
        return found
