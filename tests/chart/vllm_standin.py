"""Plays `vllm serve MODEL --host … --port …`: the arguments of vLLM's server, and then `penstock
simulate --like vllm`."""

from __future__ import annotations

import argparse
import os
import sys

# Of the time that a model takes to load, so that a worker that does not wait is found out.
LOAD_S = 0.5


def main() -> None:
    parser = argparse.ArgumentParser("vllm", allow_abbrev=False)
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", required=True)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--shutdown-timeout", type=int, required=True)
    parser.add_argument("--served-model-name", nargs="+", default=[])
    given, _ = parser.parse_known_args()  # the rest is the engine's
    loading = f"import time; time.sleep({LOAD_S}); import penstock_cli.__main__"
    simulate = ["simulate", "--like", "vllm", "--max-concurrency", str(given.max_num_seqs)]
    os.execv(
        sys.executable,
        [sys.executable, "-c", loading, *simulate, "--host", given.host, "--port", given.port],
    )


if __name__ == "__main__":
    main()
