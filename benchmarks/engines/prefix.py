"""`prefix`: documents that share long beginnings, interleaved, with a KV cache for a few of them;
in order and as they come."""

from __future__ import annotations

from pathlib import Path

from benchmarks.engines.items import items, items_with_prefixes
from benchmarks.engines.offline_vllm import WARM_UP
from benchmarks.engines.setup import Setup
from benchmarks.engines.worker import worker_fleet
from benchmarks.harness.report import Report, Row


def run(place: Path, setup: Setup) -> Report:
    small = setup.with_engine(num_gpu_blocks_override=setup.prefix_kv_tokens // setup.block)
    number = setup.items // 2  # they are long
    with worker_fleet(place / "prefix", small) as fleet:
        fleet.start()
        fleet.run(items(small, small.max_num_seqs, first=WARM_UP))
        # Other texts each time: nothing may be left in the cache from before.
        mixed = fleet.run(items_with_prefixes(small, number), prefix_order=False)
        ordered = fleet.run(items_with_prefixes(small, number, first=number), prefix_order=True)
    rows = [
        Row(
            "prefix_order on, beside off",
            f"{ordered.per_s:,.1f} items/s",
            f"{mixed.per_s:,.1f} items/s",
            f"{ordered.per_s / mixed.per_s:.2f}x",
        ),
        Row(
            "prompt tokens from the prefix cache",
            f"{ordered.hit_rate:.1%}",
            f"{mixed.hit_rate:.1%}",
        ),
    ]
    note = (
        f"{setup.prefixes} prefixes, interleaved; {mixed.prompt / mixed.items:.0f} tokens per "
        f"prompt; the KV cache holds {setup.prefix_kv_tokens:,} tokens in blocks of {setup.block}"
    )
    return Report(f"prefix, {number:,} items, one round", rows, [note])
