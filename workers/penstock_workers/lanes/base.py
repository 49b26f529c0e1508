"""The seam between the runner and whatever does the inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock_workers.answer import Tried


@dataclass(frozen=True, slots=True)
class Request:
    """One call to be made. ``tag`` names the item to the provider, so that its logs and ours can be matched."""

    tag: str
    provider: str
    endpoint: str  # path such as /v1/chat/completions
    body: bytes  # JSON
    timeout_s: float


class Lane(Protocol):
    """Infers one item at a time, hundreds of times at once, on the worker's event loop."""

    async def start(self) -> None:
        """Open what the lane needs. Raises WorkerError with the fix when the settings cannot work."""

    async def infer(self, request: Request) -> Tried:
        """Make exactly one call. Every failure of the outside world comes back as a value; only bugs raise."""
        ...

    async def close(self) -> None: ...
