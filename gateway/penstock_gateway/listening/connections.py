"""All open connections of a process, so that there are never more than its limit."""

from __future__ import annotations

from typing import Protocol

from penstock_gateway.metrics import DoorMetrics

__all__ = ["Connection", "ConnectionBook"]


class Connection(Protocol):
    def drop(self) -> None:
        """End it at once, without another word."""
        ...


class ConnectionBook:
    """Where there are as many as may be, the one that has been without a request for longest is dropped for a new one. Thousands
    of connections that say nothing cannot keep others out so: they drop one another."""

    def __init__(self, most: int, metrics: DoorMetrics) -> None:
        self._most = most
        self._metrics = metrics
        self._open: set[Connection] = set()
        self._idle: dict[Connection, None] = {}  # longest first

    def opened(self, connection: Connection) -> None:
        if len(self._open) >= self._most:
            victim = next(iter(self._idle), connection)
            self.closed(victim)
            self._metrics.dropped.inc()
            victim.drop()
            if victim is connection:
                return
        self._open.add(connection)
        self._metrics.connections.set(len(self._open))
        self._idle[connection] = None

    def busy(self, connection: Connection) -> None:
        self._idle.pop(connection, None)

    def idle(self, connection: Connection) -> None:
        if connection in self._open:
            self._idle[connection] = None

    def closed(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._metrics.connections.set(len(self._open))
        self._idle.pop(connection, None)
