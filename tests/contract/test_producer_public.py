"""What services may rely on: the producer's public names, and one tree of errors."""

from __future__ import annotations

import inspect

import pytest

import penstock_cli.errors
import penstock_ledger.errors
import penstock_producer
import penstock_producer.errors
import penstock_workers.errors
from penstock_cli.errors import EXIT_BROKEN
from penstock_ledger.errors import EXIT_FAILED, EXIT_USAGE
from penstock_ledger.model import ItemKey, Result
from penstock_producer import PenstockError

# made when it is imported, which types do not see
PUBLIC: list[str] = vars(penstock_producer)["__all__"]
MODULES = (
    penstock_ledger.errors,
    penstock_producer.errors,
    penstock_workers.errors,
    penstock_cli.errors,
)
ERRORS = sorted(
    {
        kind
        for module in MODULES
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Exception)
    },
    key=lambda kind: kind.__name__,
)
NOT_FOR_SERVICES = {
    "BatchLost",
    "FeedLost",
    "FilesTaken",
    "RedisForgot",
    "RedisUnfit",
    "WireError",
    "BadMessage",
    "BadReference",
    "RowChanged",
    "UnknownMessageVersion",
}


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_is_a_penstock_error_with_an_exit_status(kind: type[PenstockError]) -> None:
    """One `except PenstockError` catches whatever Penstock raises on purpose, and each says how a
    command ends (C7)."""
    assert issubclass(kind, PenstockError)
    assert kind.exit_status in (EXIT_FAILED, EXIT_USAGE, EXIT_BROKEN, 130)


def test_what_a_producer_raises_and_returns_is_exported() -> None:
    """No service imports from inside our packages to catch an error or to name a type (C7)."""
    raised = {
        name
        for module in (penstock_ledger.errors, penstock_producer.errors)
        for name, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Exception)
    }
    assert raised - NOT_FOR_SERVICES <= set(PUBLIC)
    assert {"Job", "JobState", "JobStatus", "Counts", "Result", "DeadLetter"} <= set(PUBLIC)
    assert sorted(set(PUBLIC)) == PUBLIC


def test_a_shell_completes_the_public_names() -> None:
    """`dir(penstock_producer)` shows what can be imported from it, although nothing is imported yet
    (D33)."""
    assert dir(penstock_producer) == sorted(PUBLIC)


def test_a_closed_job_and_a_cancelled_one_are_told_apart_by_name() -> None:
    """`JobClosed` says that the job was closed, `JobCancelled` that it was cancelled (C7)."""
    assert issubclass(penstock_producer.JobClosed, penstock_producer.JobError)
    assert not issubclass(penstock_producer.JobCancelled, penstock_producer.JobClosed)


def test_a_result_gives_its_answer_parsed() -> None:
    """`result.json()` is the provider's response; `body` stays the bytes that were stored (D33)."""
    result = Result(
        ItemKey("job_1", 1, "a"), 200, b'{"choices":[]}', None, "m", "stop", 1, 1, 0, 1, 1, 1
    )
    assert (result.json(), result.body) == ({"choices": []}, b'{"choices":[]}')
