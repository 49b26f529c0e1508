"""What the settler asks of a lane's records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock_workers.item.attempt import Settled


class Writes(Protocol):
    """What is written of a group, in threads. Every write may be repeated without harm."""

    def write_sql(self, group: Sequence[Settled]) -> None: ...

    def write_redis(self, group: Sequence[Settled]) -> None: ...
