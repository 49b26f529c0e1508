"""JSON schemas, grammars and patterns that answers must follow are tried out in a child process, before the engine has them.

One that cannot be compiled, that takes for ever or that no answer can satisfy would fail in the engine, or end it. The child
does what the engine's own backend will do. Its answers are kept, since the documents of a job mostly share one.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import pickle
from collections import OrderedDict
from typing import Any, Final

import orjson

from penstock_workers.lanes.gpu.engine.engines import RequestRefused
from penstock_workers.lanes.gpu.requests.grammar_child import CONSTRAINTS, PROGRAM, named
from penstock_workers.lanes.gpu.requests.line_child import LineChild, NoChild

log = logging.getLogger(__name__)

TRY_S: Final = 10.0  # one constraint; a usual one takes milliseconds
TRIES: Final = 2  # a child can die for another reason
IDLE_S: Final = 60.0  # after so long it is ended, to free its memory
KEPT: Final = 1_000  # answers


class GrammarCheck:
    """Used on one event loop. ``know`` comes first."""

    def __init__(self) -> None:
        self._facts: bytes | None = None
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()
        self._one_at_a_time = asyncio.Lock()
        self._child: LineChild | None = None
        self._idle: asyncio.TimerHandle | None = None

    def know(self, config: Any) -> None:
        """``config`` is the engine's VllmConfig; what the backends need of it travels to the child."""
        try:
            self._facts = pickle.dumps((config.model_config, config.structured_outputs_config))
        except Exception as error:
            log.warning("schemas and grammars are not tried out before the engine has them: %s", error)

    async def check(self, params: Any) -> None:
        """Raises RequestRefused where the answer that ``params`` ask for cannot be."""
        wanted = _constraint(params)
        if wanted is None or self._facts is None:
            return
        key = hashlib.sha256(wanted).digest()
        async with self._one_at_a_time:
            if key not in self._verdicts:
                self._keep(key, await self._verdict(wanted))
        self._verdicts.move_to_end(key)
        if (problem := self._verdicts[key]) is not None:
            raise RequestRefused(problem)

    async def close(self) -> None:
        async with self._one_at_a_time:
            child = self._child
            self._end_child()
            if child is not None:
                await child.gone()

    def _keep(self, key: bytes, verdict: str | None) -> None:
        self._verdicts[key] = verdict
        if len(self._verdicts) > KEPT:
            self._verdicts.popitem(last=False)

    async def _verdict(self, wanted: bytes) -> str | None:
        how = ""
        for _ in range(TRIES):
            try:
                return await self._ask(wanted)
            except NoChild as error:
                log.warning("schemas and grammars are not tried out before the engine has them: %s", error)
                self._facts = None
                return None
            except TimeoutError:
                how = f"takes longer than {TRY_S:g} s to compile"
                break
            except (EOFError, OSError):
                how = "ends the process that compiles it"
                self._end_child()
            finally:
                self._rest()
        self._end_child()
        return f"{named(orjson.loads(wanted))} {how}: simplify it, its patterns and numbers of repeats above all"

    async def _ask(self, wanted: bytes) -> str | None:
        if self._child is None:
            assert self._facts is not None, "check() looks"
            self._child = await LineChild.start(PROGRAM, self._facts)
        verdict: str | None = await self._child.ask(wanted, TRY_S)
        return verdict

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
    """What the answer must look like, as JSON; None where it may look like anything."""
    asked = getattr(params, "structured_outputs", None)
    if asked is None:
        return None
    given = {name: value for name in CONSTRAINTS if (value := getattr(asked, name, None)) is not None}
    return orjson.dumps(given, option=orjson.OPT_SORT_KEYS) if given else None
