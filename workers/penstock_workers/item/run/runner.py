"""The life of an item in a worker, as a recipe: read ``ItemRunner.run`` and the steps it names.

A step does one thing. Where it cannot go on it raises, and ``_not_tried`` alone says which outcome
that is; ``fates.decide`` says what outcome a call has. Nothing here acknowledges, stores or waits
for a retry: docs/one-message.md has the whole way.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from penstock_producer.feed.wire import decode_item
from penstock_producer.job.routing import unmarked
from penstock_workers.failpoints import Failpoints
from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.item.attempt import Attempt, Item, Marks, Settled
from penstock_workers.item.deliveries import Bridge, Delivery
from penstock_workers.item.failures import (
    STOPPED,
    Failure,
    Reply,
    TurnedAway,
    failure_of,
    name_failure,
    outcome_of,
)
from penstock_workers.item.lane import Admission, Lane, Prepared, Turn, request_of
from penstock_workers.item.outcome import Outcome, Unreadable
from penstock_workers.item.run.cost import too_long, whole
from penstock_workers.item.run.fates import RetryPolicy, decide
from penstock_workers.item.run.follow_ups import (
    after,
    by_rules,
    gave_way,
    has_follow_up,
    instead_of,
    let_go,
    of_its_tier,
    routed,
    to_current_model,
    turn_of,
    wanting,
)
from penstock_workers.item.run.job_code import JobCode
from penstock_workers.item.run.models import ModelCheck
from penstock_workers.item.run.passes import Passes
from penstock_workers.item.run.priming import Priming
from penstock_workers.item.run.quarantine import (
    CRASHES_MAX,
    SUSPECT_AFTER_CRASHES,
    Quarantine,
    crashed_too_often,
)
from penstock_workers.item.run.reading import Reads
from penstock_workers.item.run.reuse import Reuse
from penstock_workers.item.run.runs import Causes, Runs
from penstock_workers.item.run.starts import Starts
from penstock_workers.item.settling.rows import charge
from penstock_workers.item.slots import ItemWaits, SlotPlace

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ItemRunner:
    """Tries items, each in an asyncio task of its own, all on one loop."""

    bridge: Bridge
    lane: Lane
    reads: Reads
    admission: Admission
    quarantine: Quarantine
    code: JobCode
    starts: Starts
    runs: Runs
    causes: Causes
    waits: ItemWaits
    policy: RetryPolicy
    failpoints: Failpoints
    reuse: Reuse  # of answers, in jobs that ask for it
    priming: Priming  # of the provider's prompt cache, in jobs that use it
    passes: Passes  # answers to callers who read them as they come
    models: ModelCheck | None = None  # None in lanes without models of their own
    traced: bool = False  # attempts keep the times of their marks

    # -- the recipe --------------------------------------------------------------------------------

    async def run(self, delivery: Delivery) -> Settled:
        """Give a delivery one outcome, however its steps end."""
        item: Delivery | Item | Attempt = delivery
        try:
            item = self._read(delivery)
            item = attempt = await self._open(item)
            steps = self.priming.around(attempt, self._steps)
            outcome = await (
                self.reuse.once(attempt, steps) if attempt.job.reuse else steps(attempt)
            )
        except asyncio.CancelledError:
            outcome = STOPPED
        except Exception as error:
            outcome = await self._not_tried(item, error)
        if isinstance(item, Item):
            item.mark("decided")
        return Settled(item, outcome)

    async def _steps(self, attempt: Attempt) -> Outcome:
        if attempt.lost:
            raise TurnedAway(
                decide(attempt, Failure("source_lost", attempt.lost, None), self.policy)
            )
        # until its outcome is stored
        attempt.place = place = await self.waits.slots.place(attempt.job.flow)
        happened = await self._try_where(attempt, place)
        while isinstance(happened, Failure) and has_follow_up(attempt, happened, self.policy):
            happened = await self._follow_up(attempt, place, happened)
        # refused while it was made ready, which says nothing of other documents
        if not attempt.begun:
            raise TurnedAway(decide(attempt, happened, self.policy))
        if self.runs.note(attempt, happened):
            await self.runs.weigh(attempt, happened)
        put_off = isinstance(happened, Failure) and not self.admission.may_retry(attempt)
        return decide(attempt, happened, self.policy, put_off=put_off)

    async def _try_where(self, attempt: Attempt, place: SlotPlace) -> Failure | Reply:
        try:
            if not attempt.confined:
                return await self._try(attempt)
        except TurnedAway as away:
            if away.outcome is not None:
                raise
        return await self._try_apart(attempt, place)

    async def _try(self, attempt: Attempt) -> Failure | Reply:
        attempt.mark("seated")
        prepared = await self._prepare(attempt)
        attempt.mark("prepared")
        if prepared.refused is not None:
            return self._name(attempt, prepared.refused)
        turn = await self._admit(attempt, prepared)
        attempt.mark("admitted")
        try:
            if attempt.job.has_rules and await gave_way(attempt, self.reads.step):
                prepared = await self._make_ready(attempt)
                if prepared.refused is not None:
                    return self._name(attempt, prepared.refused)
            await self._begin(attempt, sends=True)
            turn.start()
            attempt.mark("called")
            tried = await self._infer(attempt, prepared, turn)
            attempt.mark("answered")
            happened = self._name(attempt, tried)
            turn.conclude(tried, happened)
        finally:
            turn.release()  # gives back what was never started
        return await self._accept(attempt, happened)

    # -- the steps ---------------------------------------------------------------------------------

    def _read(self, delivery: Delivery) -> Item:
        """Read which item it is, and where its body is."""
        marks: Marks | None = {"claimed": time.time_ns()} if self.traced else None
        item = Item.of(delivery, decode_item(delivery.kwargs, delivery.headers), marks)
        item.mark("read")
        return item

    async def _open(self, item: Item) -> Attempt:
        """Return the attempt: the item's job and its request body."""
        job_id, endpoint = item.key.job_id, item.message.endpoint
        job = self.reads.known_job(job_id, endpoint) or await self.reads.job(job_id, endpoint)
        body = item.message.body or await self.reads.body(item, job.spec)
        return Attempt.at(item, routed(job, body) if job.has_rules else job, body)

    async def _prepare(self, attempt: Attempt) -> Prepared:
        """Do all that can be done before the item's turn: hook, templates, tokens."""
        if attempt.next_body is not None:
            attempt.body = attempt.next_body
        else:
            await self._first_body(attempt)
        return await self._make_ready(attempt)

    async def _make_ready(self, attempt: Attempt) -> Prepared:
        if self.models is not None and self.models.needs_look(attempt):
            await self.models.check(attempt)
        attempt.passing = self.passes.of(attempt)
        prepared = await self.lane.prepare(request_of(attempt))
        # it may be refused because it is another worker's
        if prepared.refused is not None and self.models is not None:
            await self.models.check(attempt)
        return prepared

    async def _first_body(self, attempt: Attempt) -> None:
        spec, attempt.body = attempt.job.spec, unmarked(attempt.given)
        if spec.preprocess or spec.postprocess or spec.response_schema is not None:
            await self.code.ready(attempt)
        if spec.preprocess is not None:
            await self._preprocess(attempt)
        if attempt.job.has_rules:
            await by_rules(attempt, self.reads.step)
        if spec.fallback is not None or spec.tier is not None or attempt.levels:
            to_current_model(attempt, self.admission.is_down)
        if (why := too_long(whole(attempt), spec.max_prompt_tokens)) is not None:
            raise TurnedAway(decide(attempt, Failure("prompt_too_long", why, None), self.policy))

    async def _preprocess(self, attempt: Attempt) -> None:
        """Call the job's hook, with its start counted: one that ends this process is found."""
        await self._begin(attempt)
        refused = await self.code.preprocess(attempt)
        if refused is not None:
            raise TurnedAway(decide(attempt, refused, self.policy))
        await self.starts.take_back(attempt)

    async def _admit(self, attempt: Attempt, prepared: Prepared) -> Turn:
        """Wait for the item's turn, in the shared quota of its provider or in the engine."""
        turn = None if self.waits.admission.is_closed else self.admission.at_once(attempt)
        if turn is not None:
            return turn
        with self.waits.admission:
            if attempt.job.fallback is None:
                return await self.admission.turn(attempt, prepared)
            return await turn_of(self.admission, attempt, prepared)

    async def _begin(self, attempt: Attempt, *, sends: bool = False) -> None:
        """Count the start outside this process, and learn whether the item may start."""
        await self.bridge.sure()
        self.runs.check(attempt)
        await self.starts.begin(attempt, sends=sends)
        if attempt.crashes >= CRASHES_MAX:
            raise TurnedAway(decide(attempt, crashed_too_often(attempt.crashes), self.policy))
        if attempt.crashes >= SUSPECT_AFTER_CRASHES and not attempt.confined:
            await self.starts.take_back(attempt)
            raise TurnedAway(None)
        if not attempt.started:
            attempt.started = True
            self.bridge.started(attempt.delivery)

    async def _infer(self, attempt: Attempt, prepared: Prepared, turn: Turn) -> Tried:
        """Make one call."""
        attempt.sent_at = asyncio.get_running_loop().time()
        attempt.calls += 1  # until more is known: a crash from here on may have been billed
        if attempt.confined:
            return await self.quarantine.infer(attempt, prepared, turn)
        self.failpoints.hit("infer", attempt.key.doc_id)
        return await self.lane.infer(prepared)

    def _name(self, attempt: Attempt, tried: Tried) -> Failure | Reply:
        """Name what happened, and note what it cost."""
        if isinstance(tried, NoAnswer) and not tried.sent:
            attempt.calls -= 1  # earlier ones, in children that died, may have been
        attempt.last_answer, attempt.room = (
            (tried.body, tried.room) if isinstance(tried, Answer) else (None, None)
        )
        happened = attempt.happened = of_its_tier(attempt, name_failure(tried, time.time()))
        if attempt.passing is not None and isinstance(happened, Failure):
            attempt.passing.stop()  # what has not left by now was not seen
        charge(attempt, happened)
        self.causes.note(attempt, happened)
        return happened

    async def _accept(self, attempt: Attempt, happened: Failure | Reply) -> Failure | Reply:
        """See, once the turn has ended, whether a reply is what the job asked for."""
        spec = attempt.job.spec
        if isinstance(happened, Reply) and (spec.postprocess or spec.response_schema is not None):
            happened = await self.code.accept(attempt, happened)
        return wanting(attempt, happened) if attempt.job.has_rules else happened

    # -- less often --------------------------------------------------------------------------------

    async def _follow_up(
        self, attempt: Attempt, place: SlotPlace, before: Failure
    ) -> Failure | Reply:
        """Make the next request for the same item, with a start of its own; costs add up."""
        let_go(attempt)
        try:
            await self.starts.take_back(attempt)
            happened = await self._try_where(attempt, place)
        except (Exception, asyncio.CancelledError) as error:
            return instead_of(attempt, before, error, self.policy)
        return after(before, happened) if isinstance(happened, Failure) else happened

    async def _try_apart(self, attempt: Attempt, place: SlotPlace) -> Failure | Reply:
        """Take the same steps in the quarantine, when there is room in it."""
        place.leave()  # while it waits there, it must not keep others from their turn
        async with AsyncExitStack() as stack:
            with self.waits.apart:
                await stack.enter_async_context(self.quarantine.place(attempt))
            attempt.confined = True
            await place.take_again()
            return await self._try(attempt)

    async def _not_tried(self, item: Delivery | Item | Attempt, error: Exception) -> Outcome:
        """Return the outcome where a step raised."""
        outcome = outcome_of(error)
        if outcome is None:
            failure = failure_of(error)
            if failure.name == "unexpected_error":
                task_id = item.delivery.task_id if isinstance(item, Item) else item.task_id
                log.exception(
                    "item %s: unexpected error in Penstock; it is retried like a server error",
                    task_id,
                )
            outcome = (
                decide(item, failure, self.policy)
                if isinstance(item, Attempt)
                else Unreadable(failure.detail)
            )
        if not isinstance(item, Item) or (isinstance(item, Attempt) and item.begun):
            return outcome
        job = self.reads.known_job(item.key.job_id, item.message.endpoint)
        try:
            return await self.starts.vouch(item, job, outcome)
        except asyncio.CancelledError:
            return STOPPED
