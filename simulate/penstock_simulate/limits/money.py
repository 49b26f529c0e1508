"""The account that pays: empty after so many calls, or after so many dollars."""

from __future__ import annotations

from penstock_simulate.config import SimulatorConfig

TOKENS_PER_PRICE = 1e6  # prices are per million tokens


class Wallet:
    """What was spent, against what the configuration allows."""

    def __init__(self, config: SimulatorConfig) -> None:
        self.spent_usd = 0.0
        self.change(config)

    def change(self, config: SimulatorConfig) -> None:
        """Another credit, the spending kept: more of it and the account works again."""
        self._calls, self._usd = config.credit_calls, config.credit_usd
        self._usd_in = config.usd_per_mtok_in / TOKENS_PER_PRICE
        self._usd_out = config.usd_per_mtok_out / TOKENS_PER_PRICE

    def empty(self, calls: int) -> bool:
        """``calls``: how many arrived, this one included."""
        if self._calls is not None and calls > self._calls:
            return True
        return self._usd is not None and self.spent_usd >= self._usd

    def pay(self, input_tokens: float, output_tokens: float) -> None:
        self.spent_usd += input_tokens * self._usd_in + output_tokens * self._usd_out
