"""The example of a service that enqueues."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from penstock_producer import Producer

EXAMPLE = Path(__file__).parents[3] / "examples" / "enqueue_from_service.py"


def test_the_example_of_a_service_enqueues_its_documents(tmp_path: Path) -> None:
    """Run as its text says, it leaves a closed job with all of its documents in the ledger."""
    url = f"sqlite:///{tmp_path / 'penstock.db'}"
    asked = subprocess.run(
        [sys.executable, EXAMPLE],
        env=os.environ | {"PENSTOCK_DATABASE_URL": url},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    job_id = asked.stdout.partition(":")[0]
    with Producer(database_url=url) as producer:
        assert producer.status(job_id).remaining == 3
