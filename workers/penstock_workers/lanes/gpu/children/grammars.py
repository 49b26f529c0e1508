"""Tries out what answers must follow before the engine has it: JSON schemas, grammars, patterns.

One that cannot be compiled, that takes for ever or that no answer can satisfy would fail in the
engine, or end it. The trial is in a child process, which does what the engine's own backend will
do. Its answers are kept, since the documents of a job mostly share one.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import pickle
import time
from collections import OrderedDict
from typing import Any, Final

import orjson

from penstock_workers.lanes.gpu.children.grammar_child import CONSTRAINTS, PROGRAM, named
from penstock_workers.lanes.gpu.children.line_child import LineChild, NoChild
from penstock_workers.lanes.gpu.engine.engines import RequestRefused

log = logging.getLogger(__name__)

TRY_S: Final = 10.0  # one constraint; a usual one takes milliseconds
TRIES: Final = 2  # a child can die for another reason
IDLE_S: Final = 60.0  # after so long it is ended, to free its memory
KEPT: Final = 1_000  # answers, and jobs with slow ones
# After each time in a row that the child does not start; the last one counts for all others, too.
START_PAUSES_S: Final = (5.0, 15.0, 60.0, 300.0)
SLOW_S: Final = 1.0  # one that takes longer is slow,
# and when those of a job took so long together its others are refused untried: all jobs wait
SLOW_S_IN_ALL: Final = 30.0


class GrammarCheck:
    """Tries grammars in a child before the engine has them, on one loop. ``know`` comes first."""

    def __init__(self) -> None:
        self._facts: bytes | None = None
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()
        # seconds of each job that has slow ones
        self._slow: OrderedDict[str, float] = OrderedDict()
        self._one_at_a_time = asyncio.Lock()
        self._child: LineChild | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._not_started = 0  # times in a row that it did not start
        self._start_at = float("-inf")  # no other start before

    def know(self, config: Any) -> None:
        """Note what the backends need of ``config``, the engine's VllmConfig.

        It travels to the child."""
        try:
            self._facts = pickle.dumps((config.model_config, config.structured_outputs_config))
        except Exception as error:
            log.warning("schemas and grammars go to the engine without a trial: %s", error)

    async def check(self, params: Any, job_id: str) -> None:
        """Check that the answer that ``params`` ask for can be.

        Raises RequestRefused."""
        wanted = _constraint(params)
        if wanted is None or self._facts is None:
            return
        key = hashlib.sha256(wanted).digest()
        if key not in self._verdicts:  # else it does not wait for those that are being tried out
            async with self._one_at_a_time:
                if key not in self._verdicts:
                    self._refuse_slow_job(job_id)
                    await self._try(key, wanted, job_id)
        if key not in self._verdicts:
            return
        self._verdicts.move_to_end(key)
        if (problem := self._verdicts[key]) is not None:
            raise RequestRefused(problem)

    async def close(self) -> None:
        async with self._one_at_a_time:
            child = self._child
            self._end_child()
            if child is not None:
                await child.gone()

    def _refuse_slow_job(self, job_id: str) -> None:
        took_s = self._slow.get(job_id, 0.0)
        if took_s >= SLOW_S_IN_ALL:
            raise RequestRefused(
                f"slow schemas and patterns of this job have taken {took_s:.0f} s to try out, so "
                "its others are not tried: simplify them, and replay these documents"
            )

    def _note_time(self, job_id: str, took_s: float) -> None:
        if took_s > SLOW_S:
            self._slow[job_id] = self._slow.pop(job_id, 0.0) + took_s
        if len(self._slow) > KEPT:
            self._slow.popitem(last=False)

    def _keep(self, key: bytes, verdict: str | None) -> None:
        self._verdicts[key] = verdict
        if len(self._verdicts) > KEPT:
            self._verdicts.popitem(last=False)

    async def _try(self, key: bytes, wanted: bytes, job_id: str) -> None:
        """Try a constraint out and keep what came of it.

        Without a child there is no answer: what cannot be tried now goes to the engine as it is;
        its like is tried later.
        """
        if self._child is None and time.monotonic() < self._start_at:
            return
        try:
            self._keep(key, await self._verdict(wanted, job_id))
        except NoChild as error:
            pause_s = START_PAUSES_S[min(self._not_started, len(START_PAUSES_S) - 1)]
            self._not_started += 1
            self._start_at = time.monotonic() + pause_s
            log.warning(
                "schemas and grammars go to the engine without a trial: %s; next try in %g s",
                error,
                pause_s,
            )

    async def _verdict(self, wanted: bytes, job_id: str) -> str | None:
        """Return what is wrong with a constraint.

        Raises NoChild."""
        how = ""
        for _ in range(TRIES):
            try:
                return await self._ask(wanted, job_id)
            except TimeoutError:
                how = f"takes longer than {TRY_S:g} s to compile"
                break
            except (EOFError, OSError):
                how = "ends the process that compiles it"
                self._end_child()
            except asyncio.CancelledError:
                self._end_child()  # its answer would be taken for that of the next one
                raise
            finally:
                self._rest()
        self._end_child()
        return (
            f"{named(orjson.loads(wanted))} {how}: simplify it, its patterns and numbers of "
            "repeats above all"
        )

    async def _ask(self, wanted: bytes, job_id: str) -> str | None:
        if self._child is None:
            assert self._facts is not None, "check() looks"
            self._child = await LineChild.start(PROGRAM, self._facts)
            self._not_started = 0
        began = time.monotonic()
        try:
            verdict: str | None = await self._child.ask(wanted, TRY_S)
            return verdict
        finally:
            self._note_time(job_id, time.monotonic() - began)

    def _rest(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._end_if_idle)

    def _end_if_idle(self) -> None:
        if self._one_at_a_time.locked():
            self._rest()
        else:
            self._end_child()

    def _end_child(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        child, self._child = self._child, None
        if child is not None:
            child.kill()


def _constraint(params: Any) -> bytes | None:
    """Return what the answer must look like, as JSON; None where it may look like anything.

    Raises RequestRefused."""
    asked = getattr(params, "structured_outputs", None)
    if asked is None:
        return None
    given = {
        name: value for name in CONSTRAINTS if (value := getattr(asked, name, None)) is not None
    }
    try:
        return orjson.dumps(given, option=orjson.OPT_SORT_KEYS) if given else None
    except TypeError as error:  # it nests deeper than orjson writes
        raise RequestRefused(f"{named(given)} cannot be used: {error}") from error
