"""What befalls batches and the calls about them, drawn from the seed and the number of the batch or
the call."""

from __future__ import annotations

import math
from collections import Counter
from statistics import NormalDist

from penstock_simulate.answers.faults import seed_key, uniforms
from penstock_simulate.batches.course import Plan
from penstock_simulate.config import SimulatorConfig

HALF = 0.5  # where batches that stall or expire stop
_NORMAL = NormalDist()
_LEAST = 2.0**-53


class BatchLuck:
    """Draws under the settings of the moment, which are passed in."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()

    def plan(self, config: SimulatorConfig, number: int) -> Plan:
        """``number`` is the batch's among all batches, from 1."""
        luck, spread, _ = uniforms(seed_key(config.seed), f"batch {number}")
        runs_s = config.batch_s * math.exp(
            config.batch_sigma * _NORMAL.inv_cdf(max(spread, _LEAST))
        )
        plan = Plan(runs_s, config.batch_step_s, config.batch_window_s)
        if luck < config.batch_stalled_share:
            return plan._replace(most=HALF, ends=False)
        if luck < config.batch_stalled_share + config.batch_expired_share:
            return plan._replace(most=HALF)
        return plan

    def strikes(self, config: SimulatorConfig, what: str, share: float) -> bool:
        """Whether the next call of this kind is struck.

        Every call is counted, so shares can change meanwhile."""
        self._calls[what] += 1
        return (
            share > 0 and uniforms(seed_key(config.seed), f"{what} {self._calls[what]}")[0] < share
        )


class LineLuck:
    """Which lines of a batch's results are spoilt, and how."""

    def __init__(self, seed: int, share: float, batch: str) -> None:
        self._key, self._share, self._batch = seed_key(seed), share, batch

    def kind(self, line: int, kinds: int) -> int | None:
        """A kind in ``range(kinds)``, or None for a line that is sent as it should be."""
        if not self._share:
            return None
        luck, kind, _ = uniforms(self._key, f"line {line} {self._batch}")
        return int(kind * kinds) if luck < self._share else None
