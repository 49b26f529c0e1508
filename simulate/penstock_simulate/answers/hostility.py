"""Who gets which hostile answer, by the seed, the document and the number of the call, and for how
long."""

from __future__ import annotations

from penstock_simulate.answers.faults import seed_key, uniforms
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.hostile import Kind, chosen


class Hostility:
    """Draws under one configuration. Times are seconds of the caller's steady clock."""

    def __init__(self, config: SimulatorConfig) -> None:
        self._kinds = chosen(config.hostile)
        self._calls, self._documents = config.hostile_share, config.hostile_documents
        self._for_s = config.hostile_for_s
        self._key = seed_key(config.seed)
        self._since: float | None = None

    def kind(self, document: str, call: int, now: float) -> Kind | None:
        """How this call is answered, or None where it is answered well."""
        if not self._kinds or self._is_over(now):
            return None
        luck, which, _ = uniforms(self._key, f"hostile {document}")
        if luck >= self._documents:
            luck, which, _ = uniforms(self._key, f"hostile {call} {document}")
            if luck >= self._calls:
                return None
        return self._kinds[int(which * len(self._kinds))]

    def _is_over(self, now: float) -> bool:
        if self._since is None:
            self._since = now
        return self._for_s is not None and now >= self._since + self._for_s
