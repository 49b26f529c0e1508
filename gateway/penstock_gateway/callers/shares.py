"""What one tenant may hold of a door at once, so that it leaves the rest to others.

The operator has no share: it is bounded by what the door as a whole has.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Final, Literal, TypeVar

from penstock_gateway.backend import Backend
from penstock_gateway.refused import Refused

__all__ = ["Incoming", "Share", "Shares"]

K = TypeVar("K")
Share = Literal["streams", "uploads", "reads"]

_CALLED: Final[dict[Share, str]] = {
    "streams": "connections of yours follow jobs or answers",
    "uploads": "uploads of yours are under way",
    "reads": "sources of yours are being read",
}
_AGAIN_S: Final[dict[Share, int]] = {"streams": 30, "uploads": 5, "reads": 5}


class Shares:
    """The shares of one server; belongs to the event loop."""

    def __init__(self, backend: Backend) -> None:
        door = backend.settings.gateway
        self._most: dict[Share, int] = {
            "streams": door.tenant_streams,
            "uploads": door.tenant_uploads,
            "reads": door.tenant_reads,
        }
        self._held: Counter[tuple[Share, str]] = Counter()
        self._coming: Counter[str] = Counter()  # bytes of uploads that are under way, by tenant
        self._under_way: set[Incoming] = set()

    @contextlib.contextmanager
    def upload(self, tenant: str | None, room: int | None) -> Iterator[Incoming]:
        """Count one upload of a tenant for as long as it lasts.

        ``room`` is how many bytes files of the tenant may still take, without the uploads under
        way; None for no bound. Raises Refused (429).
        """
        with self.held("uploads", tenant):
            incoming = Incoming(self._coming, tenant, room)
            self._under_way.add(incoming)
            try:
                yield incoming
                self._became_a_file(incoming)
            finally:
                self._under_way.discard(incoming)
                incoming.end()

    def _became_a_file(self, done: Incoming) -> None:
        """Note that it is a file now.

        The rooms of the others of its tenant were counted before it was one.
        """
        for other in self._under_way - {done}:
            if other.tenant == done.tenant:
                other.lose_room(done.size)

    def take(self, share: Share, tenant: str | None) -> None:
        """Count one more, until ``leave``. Raises Refused (429)."""
        if tenant is None:
            return
        most = self._most[share]
        if self._held[share, tenant] >= most:
            raise Refused(
                429,
                f"{most} {_CALLED[share]} here already, and that is as many as one tenant may have "
                f"at once (gateway.tenant_{share}); try again when one has ended.",
                code="too_many_at_once",
                kind="requests",
                headers={"retry-after": str(_AGAIN_S[share])},
            )
        self._held[share, tenant] += 1

    def leave(self, share: Share, tenant: str | None) -> None:
        if tenant is not None:
            _less(self._held, (share, tenant), 1)

    @contextlib.contextmanager
    def held(self, share: Share, tenant: str | None) -> Iterator[None]:
        """Count one more for the time of the block. Raises Refused (429)."""
        self.take(share, tenant)
        try:
            yield
        finally:
            self.leave(share, tenant)


class Incoming:
    """The bytes of one upload, beside all that its tenant has here."""

    def __init__(self, coming: Counter[str], tenant: str | None, room: int | None) -> None:
        self._coming, self._room = coming, room
        self.tenant = tenant
        self.size = 0  # bytes so far

    def lose_room(self, size: int) -> None:
        if self._room is not None:
            self._room -= size

    def grow_to(self, size: int) -> None:
        """Count more bytes. Raises Refused (429) where they would take more than the share."""
        if self.tenant is None or self._room is None or size <= self.size:
            return
        if self._coming[self.tenant] - self.size + size > self._room:
            raise Refused(
                429,
                f"There is room for {max(0, self._room)} more bytes of your files: one tenant's "
                "may take no more than gateway.tenant_file_bytes. Delete files that are not needed "
                "any more.",
                code="storage_quota_exceeded",
                kind="insufficient_quota",
                headers={"retry-after": "3600", "x-should-retry": "false"},
            )
        self._coming[self.tenant] += size - self.size
        self.size = size

    def end(self) -> None:
        """End the count: it is a file by now, or nothing."""
        if self.tenant is not None:
            _less(self._coming, self.tenant, self.size)
        self.size = 0


def _less(counter: Counter[K], name: K, number: int) -> None:
    """Count down, and forget what is at zero: tenants come and go."""
    counter[name] -= number
    if counter[name] <= 0:
        del counter[name]
