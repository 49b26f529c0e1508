"""Named places where a test, or an operator, can make a worker die.

A failpoint is written ``<place>[:<doc_id>]:<act>`` and several are separated by commas, for example
``infer:doc-7:kill`` or ``after_commit:kill``. The acts: ``kill`` (SIGKILL to this process),
``raise`` (an unexpected error), and ``cuda``, which only the place ``engine`` has: what torch
raises once the context of a GPU is lost. Off unless the setting ``failpoints`` names one.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from penstock_workers.errors import FailpointHit, InvalidFailpoint

PLACES = (
    "infer",
    "cache_made",
    "engine",
    "before_commit",
    "after_commit",
    "after_settle",
    # of provider batches, in their order
    "batch_packed",
    "batch_before_upload",
    "batch_after_upload",
    "batch_before_create",
    "batch_after_create",
    "batch_created",
    "batch_before_ended",
    "batch_ended",
    "batch_collecting",
    "batch_collected",
    "batch_before_settled",
    # of a job that changes its lane, in control
    "move_leaving",
    "move_left",
    "move_handing",
    "move_arriving",
    # of a job that is cancelled, in control
    "cancel_waiting",
    "cancel_writing_off",
    "cancel_ending",
)
ACTS = ("kill", "raise", "cuda")


class PlayedDeviceError(RuntimeError):
    """An error of a GPU that is lost; torch's are RuntimeErrors as well."""


@dataclass(frozen=True, slots=True)
class Failpoint:
    """One armed place. ``doc_id`` None means every document."""

    place: str
    doc_id: str | None
    act: str

    def matches(self, place: str, doc_id: str | None) -> bool:
        return self.place == place and (self.doc_id is None or self.doc_id == doc_id)


class Failpoints:
    """The armed failpoints of this process."""

    def __init__(self, armed: tuple[Failpoint, ...] = ()) -> None:
        self._armed = armed

    @classmethod
    def parse(cls, text: str) -> Failpoints:
        """Read the setting. Raises InvalidFailpoint naming the part that is wrong."""
        return cls(tuple(_parse_one(part.strip()) for part in text.split(",") if part.strip()))

    def hit(self, place: str, doc_id: str | None = None) -> None:
        """Die here if an armed failpoint says so; free when none is armed."""
        for failpoint in self._armed:
            if failpoint.matches(place, doc_id):
                _act(failpoint)


def _parse_one(text: str) -> Failpoint:
    place, _, rest = text.partition(":")
    doc_id, _, act = rest.rpartition(":")
    if place not in PLACES or act not in ACTS or (act == "cuda" and place != "engine"):
        raise InvalidFailpoint(text, PLACES, ACTS)
    return Failpoint(place, doc_id or None, act)


def _act(failpoint: Failpoint) -> None:
    if failpoint.act == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if failpoint.act == "cuda":
        raise PlayedDeviceError(
            "CUDA error: an illegal memory access was encountered (failpoint engine)"
        )
    raise FailpointHit(f"failpoint {failpoint.place} for {failpoint.doc_id or 'every document'}")
