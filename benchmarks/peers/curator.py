"""curator (`bespokelabs-curator`) for `python -m benchmarks.peers`, in an environment of its own.

    PYTHON -m benchmarks.peers.curator URL CONCURRENCY

Says what it is as JSON, then makes as many calls as each line of stdin says. Its rate limits are
set so high that they bind nothing. Each run has other documents, since curator answers known ones
from its cache.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.harness.documents import request_body

WARM_UP_CALLS = 200
UNBOUND = 1_000_000_000  # per minute: no limit of curator's own binds


def main() -> None:
    url, concurrency = sys.argv[1], int(sys.argv[2])
    os.environ["OPENAI_API_KEY"] = "none"  # it refuses to start without one
    os.environ["TIKTOKEN_CACHE_DIR"] = str(_tokenizers())
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")  # curator prints to stdout
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    from bespokelabs import curator  # type: ignore[import-not-found,unused-ignore]  # in an environment of its own

    class Calls(curator.LLM):  # type: ignore[misc,unused-ignore]  # a peer is not installed where this is checked
        def prompt(self, row: dict[str, Any]) -> list[dict[str, Any]]:
            return list(row["messages"])

        def parse(self, row: dict[str, Any], response: Any) -> dict[str, Any]:
            return {"answer": str(response)}

    calls = Calls(
        model_name="sim-small",
        backend="openai",
        generation_params={"max_tokens": 32, "temperature": 0},
        backend_params={
            "base_url": url,
            "max_requests_per_minute": UNBOUND,
            "max_tokens_per_minute": UNBOUND,
            "max_concurrent_requests": concurrency,
            "max_retries": 1,
        },
    )
    done = 0

    def run(number: int) -> int:
        nonlocal done
        rows = [{"messages": request_body(n)["messages"]} for n in range(done, done + number)]
        done += number
        return len(getattr(found := calls(rows), "dataset", found))

    run(WARM_UP_CALLS)
    print(json.dumps({"version": version("bespokelabs-curator")}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps({"answers": run(int(line))}), file=answers, flush=True)


def _tokenizers() -> Path:
    """The encodings that litellm, which curator needs, brings along: tiktoken would download
    them."""
    litellm = find_spec("litellm")
    assert litellm is not None, "curator needs it"
    assert litellm.origin is not None, "a package with a file"
    return Path(litellm.origin).parent / "litellm_core_utils" / "tokenizers"


if __name__ == "__main__":
    main()
