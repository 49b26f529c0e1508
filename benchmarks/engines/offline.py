"""`offline`: the whole fleet beside vLLM's own batch class, on the same items with the same engine."""

from __future__ import annotations

from pathlib import Path

from benchmarks.engines.gpu_use import GpuUse, gpu_use
from benchmarks.engines.items import items
from benchmarks.engines.offline_vllm import WARM_UP
from benchmarks.engines.setup import Setup
from benchmarks.engines.work import Session, session_of
from benchmarks.engines.worker import worker_fleet
from benchmarks.report import Report, Row

TARGET = 0.97


def run(place: Path, setup: Setup) -> Report:
    offline = session_of("benchmarks.engines.offline_vllm", setup, place / "offline.log")
    alone = session_of("benchmarks.engines.lane_alone", setup, place / "lane.log")
    fleet, use = _fleet(place, setup)
    peer, lane, ours = offline.middle("chat"), alone.middle("lane"), fleet.middle("fleet")
    ratio = ours.per_s / peer.per_s
    rows = [
        Row(
            "whole fleet beside LLM.chat", f"{ours.per_s:,.1f} items/s", f"{peer.per_s:,.1f} items/s", f"{ratio:.3f}",
            f">= {TARGET}", ratio >= TARGET,
        ),
        Row(
            "lane alone beside LLM.chat", f"{lane.per_s:,.1f} items/s", f"{peer.per_s:,.1f} items/s",
            f"{lane.per_s / peer.per_s:.3f}",
        ),
        Row(
            "whole fleet beside the lane alone", f"{ours.per_s:,.1f} items/s", f"{lane.per_s:,.1f} items/s",
            f"{ours.per_s / lane.per_s:.3f}",
        ),
        Row(
            "whole fleet beside LLM.generate, tokens made beforehand", f"{ours.per_s:,.1f} items/s",
            f"{offline.middle('generate').per_s:,.1f} items/s",
            f"{ours.per_s / offline.middle('generate').per_s:.3f}",
        ),
        Row(
            "items per CPU second, whole fleet beside LLM.chat", f"{ours.per_cpu_s:,.1f}", f"{peer.per_cpu_s:,.1f}",
            f"{ours.per_cpu_s / peer.per_cpu_s:.3f}",
        ),
        Row(
            "items per CPU second, lane alone beside LLM.chat", f"{lane.per_cpu_s:,.1f}", f"{peer.per_cpu_s:,.1f}",
            f"{lane.per_cpu_s / peer.per_cpu_s:.3f}",
        ),
        Row(
            "start until ready", f"{fleet.start_s:.1f} s", f"{offline.start_s:.1f} s",
            f"{fleet.start_s / offline.start_s:.2f}",
        ),
    ]  # fmt: skip
    title = f"offline, {setup.items:,} items, median of {setup.rounds} rounds"
    return Report(title, rows, [*_notes(offline, alone, fleet), *([str(use)] if setup.gpu else [])])


def _fleet(place: Path, setup: Setup) -> tuple[Session, GpuUse]:
    with worker_fleet(place / "offline", setup) as fleet:
        fleet.start()
        fleet.run(items(setup, setup.max_num_seqs, first=WARM_UP))
        with gpu_use() as use:
            rounds = [fleet.run(items(setup, setup.items, first=n * setup.items)) for n in range(setup.rounds)]
        return Session(fleet.start_s, {"fleet": rounds}), use


def _notes(*sessions: Session) -> list[str]:
    figures = [
        f"{way} {', '.join(f'{work.per_s:,.1f}' for work in works)} items/s, {_tokens(session, way)}"
        for session in sessions
        for way, works in session.rounds.items()
    ]
    return [
        "rounds: " + "; ".join(figures),
        "a fleet's round lasts from the moment when its worker takes the first item to the last outcome in the ledger; "
        "vLLM's and the lane's, one call or task group; all engines are warm, and every round has texts of its own",
    ]


def _tokens(session: Session, way: str) -> str:
    return f"{session.middle(way).tokens_per_s:,.0f} tokens/s"
