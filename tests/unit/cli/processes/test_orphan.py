"""How an orphaned worker ends."""

from __future__ import annotations

import signal

from penstock_cli.processes.signals import ORPHAN_DRAIN_S, WATCH_INTERVAL_S, watch


def test_an_orphan_is_asked_first_and_then_made_to_end() -> None:
    """SIGTERM comes as soon as the parent is seen gone, SIGKILL when the drain time is over."""
    answers = iter([False, False, True])
    history: list[signal.Signals | float] = []
    watch(lambda: next(answers), end=history.append, sleep=history.append)
    assert history == [
        WATCH_INTERVAL_S,
        WATCH_INTERVAL_S,
        signal.SIGTERM,
        ORPHAN_DRAIN_S,
        signal.SIGKILL,
    ]
