from __future__ import annotations

import subprocess
import sys

import pytest

import penstock_producer

HEAVY = ["aiohttp", "alembic", "billiard", "boto3", "botocore", "celery", "kombu", "rich", "typer"]


@pytest.mark.parametrize(
    "statement", ["import penstock_producer", "from penstock_producer import *"]
)
def test_importing_the_producer_is_light(statement: str) -> None:
    """A service that enqueues documents loads no worker, no S3 client and no migrations."""
    code = f"import sys\n{statement}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == []


def test_every_public_name_is_there() -> None:
    """The names that the package promises exist, and nothing else pretends to."""
    for name in penstock_producer.__all__:
        assert getattr(penstock_producer, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Consumer'"):
        getattr(penstock_producer, "Consumer")  # noqa: B009  # type checkers know that there is none
