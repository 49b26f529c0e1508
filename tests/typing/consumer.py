"""What a typed program of a user sees of the installed package: read by mypy and pyright, never
run.

Each ``assert_type`` is a promise; where one does not hold both programs name its line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import assert_type

import penstock
from penstock_producer import (
    JobRefused,
    JobStatus,
    PenstockError,
    Preview,
    Producer,
    ProducerSettings,
    Result,
)


def from_a_script() -> None:
    rows = [{"id": "a", "text": "one"}]
    answers = penstock.run(rows, prompt="Summarise: {text}", model="m")
    assert_type(answers, penstock.Answers)
    for answer in answers:
        assert_type(answer, penstock.Answer)


def from_a_service(source: Path) -> str:
    with Producer(database_url="sqlite:///ledger.db") as producer:
        assert_type(producer, Producer)
        try:
            job = producer.submit(source, {"prompt": "{text}", "model": "m"}, job_key="night")
        except JobRefused as refused:
            return str(refused)
        except PenstockError:
            raise
        status = producer.status(job.job_id)
        assert_type(status, JobStatus)
        assert_type(status.job.job_key, str)
        return status.job.job_key


def answers_of(producer: Producer) -> Iterator[str]:
    preview = producer.preview("night.jsonl", {"prompt": "{text}", "model": "m"})
    assert_type(preview, Preview)
    for result in producer.results("night"):
        assert_type(result, Result)
        yield str(result)


def settings() -> ProducerSettings:
    return ProducerSettings.load(database_url="sqlite:///ledger.db")
