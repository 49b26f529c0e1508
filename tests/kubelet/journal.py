"""What a kubelet did, in its order: tests ask what came before what."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

MAX_EVENTS = 10_000  # the oldest go first; a test makes some hundreds


class Did(StrEnum):
    """Kubernetes' own words where it has one."""

    START = "Started"  # a container has a process
    UP = "StartupSucceeded"  # its startup probe said yes, or it has none
    READY = "Ready"
    UNREADY = "Unready"
    ALIVE = "Alive"  # its liveness probe said yes
    UNHEALTHY = "Unhealthy"  # a probe said no
    PRE_STOP = "PreStop"
    TERM = "Killing"  # SIGTERM was sent
    KILL = "Killed"  # SIGKILL was
    EXIT = "Exited"
    BACK_OFF = "BackOff"
    FAIL = "Failed"  # could not be started


@dataclass(frozen=True, slots=True)
class Event:
    at: float  # by the journal's clock
    pod: str
    container: str
    did: Did
    message: str


class Journal:
    """Written by the kubelet's thread, read by tests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)

    def add(self, pod: str, container: str, did: Did, message: str = "") -> None:
        self._events.append(Event(self._clock(), pod, container, did, message))

    def of(
        self, pod: str, *did: Did, container: str | None = None, since: float = 0.0
    ) -> list[Event]:
        """Events of one pod; without ``did`` of every kind."""
        return [
            event
            for event in tuple(self._events)
            if event.pod == pod
            and event.at >= since
            and (not did or event.did in did)
            and container in (None, event.container)
        ]

    def order(self, pod: str, *did: Did) -> list[tuple[str, Did]]:
        return [(event.container, event.did) for event in self.of(pod, *did)]

    def text(self, pod: str) -> str:
        """For a failing test's output."""
        return "\n".join(
            f"{event.at:.2f} {event.container} {event.did} {event.message}"
            for event in self.of(pod)
        )
