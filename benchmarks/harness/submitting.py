"""Submits the jobs of one fleet with the fleet's own code, which may be another checkout.

A line of JSON asks: `{"path", "spec"}` submits and answers with the job's id and the seconds of CPU
that it took; `{"job"}` answers whether that job is over. It migrates the database first.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from penstock_ledger import open_database
from penstock_producer import Producer


def main(database_url: str) -> None:
    database = open_database(database_url)
    database.migrate()
    database.close()
    with Producer(database_url=database_url) as producer:
        _answer({})
        for line in sys.stdin:
            asked = json.loads(line)
            if "job" in asked:
                _answer({"over": producer.status(asked["job"]).job.state.final})
                continue
            began = time.thread_time()
            job = producer.submit(asked["path"], asked["spec"])
            _answer({"job": job.job_id, "cpu_s": time.thread_time() - began})


def _answer(content: dict[str, Any]) -> None:
    print(json.dumps(content), flush=True)  # the answer


if __name__ == "__main__":
    main(sys.argv[1])
