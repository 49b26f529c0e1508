"""Ray Data LLM's HTTP processor for `python -m benchmarks.peers`, in an environment of its own.

    PYTHON -m benchmarks.peers.ray URL CONCURRENCY

Says what it is as JSON, then makes as many calls as each line of stdin says. Its ``concurrency`` is
a number of processes, each of which sends the rows of one batch; one process and batches of
CONCURRENCY are what comes nearest to so many calls at once.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from benchmarks.harness.documents import request_body

WARM_UP_CALLS = 500


def main() -> None:
    url, concurrency = sys.argv[1], int(sys.argv[2])
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")  # ray prints to stdout
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    import ray  # type: ignore[import-not-found,unused-ignore]  # in an environment of its own
    from ray.data.llm import HttpRequestProcessorConfig, build_processor  # type: ignore[import-not-found,unused-ignore]

    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        num_cpus=2,
        _node_ip_address="127.0.0.1",
        _temp_dir=os.environ["HOME"],
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    processor = build_processor(
        HttpRequestProcessorConfig(
            url=f"{url}/chat/completions", batch_size=concurrency, concurrency=1
        ),
        preprocess=lambda row: {"payload": json.loads(row["body"])},
        postprocess=lambda row: {
            "answer": row["http_response"]["choices"][0]["message"]["content"]
        },
    )

    def run(number: int) -> int:
        rows: list[dict[str, Any]] = [{"body": json.dumps(request_body(n))} for n in range(number)]
        return len(processor(ray.data.from_items(rows)).take_all())

    run(WARM_UP_CALLS)
    print(json.dumps({"version": ray.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps({"answers": run(int(line))}), file=answers, flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
