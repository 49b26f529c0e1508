"""Outputs of a real ledger."""

from __future__ import annotations

import json
from pathlib import Path

from penstock_ledger import JobStore, OutcomeStore, open_database
from penstock_ledger.model import DeadLetter, ItemKey, NewJob, Result
from penstock_producer.outputs import write_outputs


def result(key: ItemKey) -> Result:
    return Result(key, 200, b'{"text": "ok"}', "req", "m", "stop", 1, 1, 0, 5, 1, 1)


def letter(key: ItemKey) -> DeadLetter:
    return DeadLetter(key, "bad_request", 1, 1, "no", 400, b"{}", b'{"error": {"message": "no"}}')


def custom_ids(path: Path) -> list[str]:
    return sorted(json.loads(line)["custom_id"] for line in path.read_bytes().splitlines())


def test_each_document_is_in_exactly_one_file(tmp_path: Path) -> None:
    """Results and dead letters of more than one page are all there; a replayed document moves to
    its new outcome."""
    database = open_database(f"sqlite:///{tmp_path / 'ledger.db'}")
    database.migrate()
    jobs, outcomes = JobStore(database), OutcomeStore(database)
    jobs.create(NewJob("job", "key", {}, {"kind": "spool"}, "digest", 2_500))
    good = [ItemKey("job", 1, f"good-{number}") for number in range(2_000)]
    bad = [ItemKey("job", 1, f"bad-{number}") for number in range(500)]
    outcomes.settle([result(key) for key in good], [letter(key) for key in bad])
    jobs.replay("job", reason=None, doc_ids=["bad-7"], overrides={})
    outcomes.settle([result(ItemKey("job", 2, "bad-7"))], [])

    written = write_outputs(outcomes, "job", tmp_path / "out")

    assert (written.results, written.dead_letters) == (2_001, 499)
    assert custom_ids(tmp_path / "out" / "output.jsonl") == sorted(
        [key.doc_id for key in good] + ["bad-7"]
    )
    assert custom_ids(tmp_path / "out" / "errors.jsonl") == sorted(
        {key.doc_id for key in bad} - {"bad-7"}
    )
    database.close()
