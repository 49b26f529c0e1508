"""Runs a job's hooks and checks its answers against its schema, both in child processes.

The worker keeps a paid answer while its check is repeated after a crash, so no crash causes a
second call.

Which hooks run right now, and since when: what `penstock status` shows of one that hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from itertools import count
from time import monotonic

import orjson
from msgspec import structs

from penstock_ledger.vectors import as_json
from penstock_ratelimit.for_penstock import DETAIL_CHARS
from penstock_workers.children.child import CHECK_S, HOOK_TIMEOUT_S, LossCause
from penstock_workers.children.child_pool import CallEndedChild, ChildPool
from penstock_workers.children.protocol import (
    CallFault,
    Check,
    ChildCall,
    Fine,
    ImportHook,
    Mismatch,
    Missing,
    Postprocess,
    Preprocess,
    Refused,
    TrySchema,
)
from penstock_workers.children.protocol import ChildReply as Said
from penstock_workers.errors import ChildBroken, HookMissing, HookStuck, SchemaUnusable, WorkerError
from penstock_workers.failure_log import FailureLog
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import Failure, RefusedAnswer, Reply
from penstock_workers.item.slots import Slots

SHOWN_FROM_S = 5.0  # most calls take milliseconds, and are not worth a word


class HooksUnderWay:
    """Calls of hooks that have no answer yet, as many as items are in flight. On one event loop."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._numbers = count()
        self._began: dict[int, tuple[str, float]] = {}  # oldest first

    @contextlib.contextmanager
    def call(self, path: str) -> Iterator[None]:
        number = next(self._numbers)
        self._began[number] = path, self._clock()
        try:
            yield
        finally:
            del self._began[number]

    def described(self) -> Mapping[str, str]:
        """Return the hook that has run longest, its seconds and its calls.

        Empty while none takes long."""
        if not self._began:
            return {}
        path, began = next(iter(self._began.values()))
        seconds = self._clock() - began
        if seconds < SHOWN_FROM_S:
            return {}
        calls = sum(other == path for other, _ in self._began.values())
        return {"hook": path, "hook_s": f"{seconds:.0f}", "hook_calls": str(calls)}


log = logging.getLogger(__name__)

# calls of a hook in a row that took too long: then the hook is broken, not one document
STUCK_MAX = 16
KEPT = 200  # hooks and schemas that are known to be usable: one schema and two hooks per job
# Between tries to check an answer that is paid for, while no process for that can be started, or
# its hook cannot be imported any more. In the first minute memory or processes may come free. Then
# no other document of its job is sent, so that the job pauses and says why; the answers that are
# here wait nine minutes more, in half of the slots at most, so that other jobs go on in the rest.
# Those beyond it give their slot back then, and the others after ten minutes: they are paid for
# again.
START_AGAIN_S = (1.0, 4.0, 10.0, 15.0, 30.0)
KEPT_ON_S = (30.0,) * 18
# of an answer that is shown to its model again: four pages, or four thousand tokens
REFUSED_ANSWER_CHARS = 16_000
HELD_S = 10.0  # a broken hook is not called again for so long: its job is about to pause


class JobCode:
    """Runs the hooks and checks of jobs in children.

    ``hooks`` and ``checks`` are the pools for ordinary items, ``suspects`` is the one for suspected
    items."""

    def __init__(
        self,
        hooks: ChildPool,
        checks: ChildPool,
        suspects: ChildPool,
        hook_timeout_s: float = HOOK_TIMEOUT_S,
        *,
        slots: Slots | None = None,
    ) -> None:
        """Make the calls of a worker's jobs to their own code.

        ``slots`` are what paid answers hold while they wait; None where they hold none."""
        self._hooks, self._checks, self._suspects = hooks, checks, suspects
        self._slots = slots
        self._kept_on = 0  # paid answers that wait for longer than a minute
        self._hook_timeout_s = hook_timeout_s
        self._under_way = HooksUnderWay()
        self._usable: OrderedDict[str, None] = OrderedDict()  # hooks, and jobs with their schema
        self._schemas: OrderedDict[str, bytes] = OrderedDict()  # by job
        # until when, and why; as many as ``_usable``
        self._broken: dict[str, tuple[float, WorkerError]] = {}
        self._overtimes: Counter[str] = Counter()  # by hook, in a row
        self._failures = FailureLog(log)
        # hooks whose traceback is in the log; as many as were ever imported
        self._logged: set[str] = set()

    async def ready(self, attempt: Attempt) -> None:
        """Check the hooks and the schema before the call.

        Raises HookMissing, HookStuck and SchemaUnusable."""
        spec = attempt.job.spec
        for path in (spec.preprocess, spec.postprocess):
            if path is not None:
                await self._once(path, partial(self._look_for, attempt, path))
        if spec.response_schema is not None:
            await self._once(attempt.key.job_id, partial(self._try_schema, attempt))

    async def preprocess(self, attempt: Attempt) -> Failure | None:
        """Let the job's hook change the body of the request. Raises HookMissing."""
        path = attempt.job.spec.preprocess
        if path is None:
            return None
        said = await self._call(
            attempt,
            path,
            Preprocess(path, *attempt.key, attempt.job.spec.endpoint, attempt.body),
            None,
        )
        if isinstance(said, Failure):
            return said
        if isinstance(said, Fine):
            attempt.body = said.body
        return None

    async def accept(self, attempt: Attempt, reply: Reply) -> Reply | Failure:
        """Check a reply against the job's schema, then pass it to its hook. Raises HookMissing."""
        if attempt.job.spec.response_schema is not None:
            mismatch = await self._check(attempt, reply)
            if mismatch is not None:
                return mismatch
        path = attempt.job.spec.postprocess
        if path is None:
            return reply
        call = Postprocess(
            path, *attempt.key, attempt.job.spec.endpoint, attempt.body, as_json(reply.body)
        )
        said = await self._call(attempt, path, call, reply.status)
        if isinstance(said, Fine):
            return structs.replace(reply, body=said.body)
        if isinstance(said, Refused):
            detail = f"{path}: {said.reason}"[:DETAIL_CHARS]
            return Failure("invalid_result", detail, reply.status, final=not said.retry)
        return said

    def described(self) -> Mapping[str, str]:
        """Say for the heartbeat which hook has run longest, while one takes long."""
        return self._under_way.described()

    async def close(self) -> None:
        for pool in (self._hooks, self._checks, self._suspects):
            await pool.close()

    # -- hooks -------------------------------------------------------------------------------------

    async def _call(
        self, attempt: Attempt, path: str, call: Preprocess | Postprocess, status: int | None
    ) -> Fine | Refused | Failure:
        try:
            with self._under_way.call(path):
                said = await self._ask(self._hooks, attempt, call)
        except CallEndedChild as ended:
            return self._failure_of(path, ended, status)
        if isinstance(said, Missing):
            raise HookMissing(said.words)
        self._note_overtime(path, isinstance(said, CallFault) and said.overtime)
        if isinstance(said, CallFault):
            self._log_once(path, said.trace)
            return Failure("hook_failed", f"{path}: {said.words}"[:DETAIL_CHARS], status)
        assert isinstance(said, (Fine, Refused)), said
        return said

    def _failure_of(self, path: str, ended: CallEndedChild, status: int | None) -> Failure:
        if ended.cause is LossCause.STUCK:
            self._note_overtime(path, True)
            words = (
                f"{path}: it took longer than {self._hook_timeout_s:g} s, and its process had to "
                "be ended"
            )
            return Failure("hook_failed", words, status)
        return Failure("worker_crashed", f"{path}: {_end(ended)}", status)

    def _note_overtime(self, path: str, overtime: bool) -> None:
        self._overtimes[path] = self._overtimes[path] + 1 if overtime else 0
        if self._overtimes[path] > STUCK_MAX:
            why = (
                f"hook_stuck: the last {self._overtimes.pop(path)} calls of {path} took longer "
                f"than {self._hook_timeout_s:g} s each; correct the hook, restart the workers, "
                "resume"
            )
            self._broken[path] = monotonic() + HELD_S, HookStuck(why)

    def _log_once(self, path: str, trace: str) -> None:
        if trace and path not in self._logged:
            self._logged.add(path)
            log.warning(
                "hook %s raised; its item is a dead letter. Later ones are not logged.\n%s",
                path,
                trace.rstrip(),
            )

    async def _look_for(self, attempt: Attempt, path: str) -> None:
        try:
            said = await self._ask(self._hooks, attempt, ImportHook(path))
        except CallEndedChild as ended:
            error = HookMissing(f"hook_missing: {path} cannot be imported here: {_end(ended)}")
            self._broken[path] = monotonic() + HELD_S, error
            raise error from None
        if isinstance(said, (Missing, CallFault)):
            raise HookMissing(said.words)

    # -- schemas -----------------------------------------------------------------------------------

    async def _check(self, attempt: Attempt, reply: Reply) -> Failure | None:
        """Return `schema_mismatch` with where the reply differs, `answer_cut`, or None."""
        try:
            said = await self._ask(
                self._checks, attempt, Check(self._schema(attempt), reply.content or "")
            )
        except CallEndedChild as ended:
            if ended.cause is LossCause.STUCK:
                words = (
                    f"the check took longer than {CHECK_S:g} s; simplify the schema, its patterns "
                    "above all"
                )
                return Failure("schema_mismatch", words, reply.status)
            return Failure(
                "worker_crashed", f"the check against the schema: {_end(ended)}", reply.status
            )
        if not isinstance(said, CallFault | Mismatch):
            return None
        if reply.finish_reason == "length":
            return Failure(
                "answer_cut", (_cut_short(reply) + said.words)[:DETAIL_CHARS], reply.status
            )
        refused = None
        if isinstance(said, Mismatch):
            refused = RefusedAnswer((reply.content or "")[:REFUSED_ANSWER_CHARS], said.rule)
        # a repetition as it was would be one more
        final = attempt.repairs_left <= 0 < attempt.spent_in_all.repairs
        return Failure(
            "schema_mismatch", said.words[:DETAIL_CHARS], reply.status, final=final, refused=refused
        )

    async def _try_schema(self, attempt: Attempt) -> None:
        try:
            said = await self._ask(self._checks, attempt, TrySchema(self._schema(attempt)))
            words = said.words if isinstance(said, CallFault) else None
        except CallEndedChild as ended:
            words = "it takes too long" if ended.cause is LossCause.STUCK else _end(ended)
        if words is not None:
            error = SchemaUnusable(
                f"schema_unusable: response_schema cannot be used to check answers: {words}; "
                "submit again with another one"
            )
            self._broken[attempt.key.job_id] = monotonic() + HELD_S, error
            raise error

    def _schema(self, attempt: Attempt) -> bytes:
        job_id = attempt.key.job_id
        schema = self._schemas.get(job_id)
        if schema is None:
            schema = self._schemas[job_id] = orjson.dumps(attempt.job.spec.response_schema)
            if len(self._schemas) > KEPT:
                self._schemas.popitem(last=False)
        return schema

    # -- both --------------------------------------------------------------------------------------

    async def _ask(self, pool: ChildPool, attempt: Attempt, call: ChildCall) -> Said:
        """Ask a child; raise ChildBroken.

        At once before the call, and after many attempts where an answer is paid for."""
        if not isinstance(call, Postprocess | Check):
            return await self._ask_once(pool, attempt, call)
        for pause_s in START_AGAIN_S:
            said = await self._ask_paid(pool, attempt, call, pause_s, is_first_minute=True)
            if said is not None:
                return said
        if self._slots is not None and self._kept_on >= self._slots.size // 2:
            return await self._ask_once(pool, attempt, call)
        self._kept_on += 1
        try:
            for pause_s in KEPT_ON_S:
                said = await self._ask_paid(pool, attempt, call, pause_s, is_first_minute=False)
                if said is not None:
                    return said
            return await self._ask_once(pool, attempt, call)
        finally:
            self._kept_on -= 1

    async def _ask_paid(
        self,
        pool: ChildPool,
        attempt: Attempt,
        call: Postprocess | Check,
        pause_s: float,
        *,
        is_first_minute: bool,
    ) -> Said | None:
        """Ask a process about a paid answer.

        Return None after a pause, where no process can check it now."""
        try:
            said = await self._ask_once(pool, attempt, call)
            if not isinstance(said, Missing):
                return said
            error: WorkerError = HookMissing(said.words)
        except ChildBroken as broken:
            error = broken
        self._failures.tell(
            "an answer waits for a process that can check it", error, "it is tried again"
        )
        if isinstance(error, HookMissing) or not is_first_minute:
            name = call.path if isinstance(call, Postprocess) else attempt.key.job_id
            self._broken[name] = monotonic() + max(pause_s, HELD_S), error
        await asyncio.sleep(pause_s)
        return None

    async def _ask_once(self, pool: ChildPool, attempt: Attempt, call: ChildCall) -> Said:
        return await (
            self._suspects.ask(call, attempt.line) if attempt.confined else pool.ask(call)
        )

    async def _once(self, name: str, look: Callable[[], Awaitable[None]]) -> None:
        """Check once whether a hook or a schema can be used."""
        until, error = self._broken.get(name, (0.0, None))
        if error is not None:
            if monotonic() < until:
                raise error
            del self._broken[name]
        if name in self._usable:
            return
        await look()
        self._usable[name] = None
        if len(self._usable) > KEPT:
            self._usable.popitem(last=False)


def _cut_short(reply: Reply) -> str:
    """Return what is said of a cut answer, before what the schema says.

    Nothing else is wrong with it, mostly."""
    tokens = "" if reply.completion_tokens is None else f" after {reply.completion_tokens} tokens"
    return (
        f"the answer was cut{tokens} (finish_reason length): raise max_tokens, or ask for a "
        "shorter answer; as it is: "
    )


def _end(ended: CallEndedChild) -> str:
    how = (
        "held more memory than hook_memory_mb allows"
        if ended.cause is LossCause.MEMORY
        else "died (an exit, a signal or a crash in native code)"
    )
    return f"its process {how}, {ended.deaths} times, the last time when it ran alone"
