"""What the engine reports at every step, gathered into the few figures that people and EngineQueue
need."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from penstock_workers.lanes.gpu.engine.engine_queue import EngineState

SPAN_S = 5.0  # rates are those of the last seconds
QUEUE_WAIT_RATE = 0.05  # per item, for the mean time in the engine's own line
MEMORY_BOUND = 0.95  # of the KV cache: beyond it requests are preempted and computed again


class EngineFigures:
    """Fed by vLLM's stat loggers, one per engine of a data-parallel group; read from any thread."""

    def __init__(
        self,
        report: Callable[[EngineState], None],
        stepped: Callable[[int, EngineState], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report, self._stepped = report, stepped  # the latter of one engine of the group
        self._clock = clock
        self._states: dict[int, EngineState] = {}  # one per data-parallel engine
        self._prompt = self._generated = 0  # tokens since the span began
        self._span_began = clock()
        self._prompt_per_s = self._generated_per_s = 0.0
        self._queried = self._hit = 0
        self._preempted = 0
        self._queue_wait_s = 0.0

    def note(self, scheduler: Any, iteration: Any, engine: int = 0) -> None:
        """One step.

        ``scheduler`` and ``iteration`` are vLLM's SchedulerStats and IterationStats, or None."""
        if iteration is not None:
            self._generated += iteration.num_generation_tokens
            self._prompt += iteration.num_prompt_tokens
            self._preempted += iteration.num_preempted_reqs
            for finished in iteration.finished_requests:
                self._queue_wait_s += QUEUE_WAIT_RATE * (finished.queued_time - self._queue_wait_s)
        self._roll()
        if scheduler is None:
            return
        cache = scheduler.prefix_cache_stats
        if cache is not None:
            self._queried += cache.queries
            self._hit += cache.hits
        deferred = getattr(
            scheduler, "num_skipped_waiting_reqs", 0
        )  # since 0.2x; they wait all the same
        self._states[engine] = state = EngineState(
            scheduler.num_running_reqs,
            scheduler.num_waiting_reqs + deferred,
            scheduler.kv_cache_usage,
        )
        self._stepped(engine, state)
        self._report(self.state)

    def forget(self) -> None:
        """The engine is gone, and its last figures with it."""
        self._states.clear()
        self._prompt_per_s = self._generated_per_s = 0.0

    @property
    def state(self) -> EngineState:
        """All engines of the group together; the fullest cache counts."""
        states = list(self._states.values())
        return EngineState(
            sum(state.running for state in states),
            sum(state.waiting for state in states),
            max((state.kv_usage for state in states), default=0.0),
        )

    @property
    def preempted(self) -> int:
        return self._preempted

    def gauges(self, *, max_seqs: int, lined_up: int) -> dict[str, float | str]:
        """``lined_up`` are items that are ready and wait for a place."""
        self._roll()
        state = self.state
        return {
            "running": float(state.running),
            "waiting": float(state.waiting + lined_up),
            "kv_usage": state.kv_usage,
            "prefix_hit_rate": self._hit / self._queried if self._queried else 0.0,
            "prompt_tokens_per_s": self._prompt_per_s,
            "generation_tokens_per_s": self._generated_per_s,
            "preempted": float(self._preempted),
            "queue_wait_ms": self._queue_wait_s * 1000,
            "bound": bound(state, max_seqs=max_seqs, lined_up=lined_up),
        }

    def _roll(self) -> None:
        now = self._clock()
        span = now - self._span_began
        if span < SPAN_S:
            return
        self._prompt_per_s, self._generated_per_s = self._prompt / span, self._generated / span
        self._prompt = self._generated = 0
        self._span_began = now


def bound(state: EngineState, *, max_seqs: int, lined_up: int) -> str:
    """What limits the worker now: `memory` (KV cache full), `engine` (it has all it can do) or
    `queue` (it starves)."""
    if not max_seqs:
        return "starting"
    if state.kv_usage >= MEMORY_BOUND:
        return "memory"
    if state.waiting or lined_up or state.running >= max_seqs:
        return "engine"
    return "queue"
