"""`penstock gateway` and `penstock keys` as an operator uses them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from doors import asked
from fleet import until
from forked import Penstock
from servers import RedisServer, free_port
from typer.testing import CliRunner

from penstock_cli.errors import UsageProblem
from penstock_cli.main import command_line
from penstock_ledger import open_database


def penstock(folder: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    where = {"PENSTOCK_DATABASE_URL": f"sqlite:///{folder}/ledger.db", **variables}
    return Penstock(
        words,
        cwd=folder,
        env=kept | where,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """`penstock keys …` in this process; returns what it prints, and raises what it raises."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", f"sqlite:///{tmp_path}/ledger.db")
    open_database(f"sqlite:///{tmp_path}/ledger.db").migrate()

    def run(*words: str) -> str:
        answer = CliRunner().invoke(command_line(), ["keys", *words])
        if answer.exception is not None:
            raise answer.exception
        return answer.stdout

    return run


def test_keys_are_made_shown_once_and_revoked(keys: Callable[..., str]) -> None:
    """A secret is printed when its key is made, and by nothing else."""
    secret = keys(
        "create", "night", "--tenant", "search", "--requests-per-minute", "60", "--expires", "90d"
    ).strip()
    assert secret.startswith("sk-penstock-")
    listed = keys("list")
    assert "search" in listed
    assert "60/min" in listed
    assert secret not in listed
    (key,) = json.loads(keys("list", "--json"))
    assert (key["name"], key["valid"], "digest" in key) == ("night", True, False)
    keys("revoke", key["key_id"])
    assert "revoked" in keys("list")


@pytest.mark.parametrize(
    "words",
    [
        ["--scope", "all"],
        ["--tenant", "a/b"],
        ["--tenant", "job_1"],
        ["--expires", "soon"],
        ["--budget-usd", "5"],
        ["--budget-usd", "inf", "--tenant", "a"],
    ],
)
def test_a_key_that_cannot_be_is_refused(keys: Callable[..., str], words: list[str]) -> None:
    """The error names the flag and what to give."""
    with pytest.raises(UsageProblem, match=words[0]):
        keys("create", "x", *words)
    assert "no keys" in keys("list")


@pytest.fixture
def served(tmp_path: Path, redis_server: RedisServer) -> tuple[subprocess.Popen[str], str]:
    port = free_port()
    process = penstock(
        tmp_path,
        "gateway",
        "--port",
        str(port),
        PENSTOCK_REDIS_URL=redis_server.url,
        PENSTOCK_GATEWAY__LEAVE_S="1.5",
    )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            return asked(f"{url}/health").status == 200
        except OSError:
            assert process.poll() is None, process.communicate()
            return False

    until(answers, 30, "the door answers")
    return process, url


def test_a_door_ends_when_it_is_asked_to(served: tuple[subprocess.Popen[str], str]) -> None:
    """SIGTERM: /health refuses first, then the port is closed, and the process ends with status 0;
    a request is one log line."""
    process, url = served
    asked(f"{url}/v1/nothing?q=secretvalue")
    process.send_signal(signal.SIGTERM)
    told = []

    def refuses() -> bool:
        told.append(asked(f"{url}/health"))
        return told[-1].status == 503

    until(refuses, 30, "/health refuses while the port is still open")
    assert told[-1].content["status"] == "closing"
    _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert f"the HTTP API listens at {url}" in said
    assert "GET /v1/nothing 404" in said
    assert "secretvalue" not in said
    assert "Traceback" not in said


def test_a_door_to_a_network_needs_a_key(tmp_path: Path) -> None:
    """Status 2, and what to do."""
    process = penstock(tmp_path, "gateway", "--host", "0.0.0.0", "--port", "0")
    _, said = process.communicate(timeout=60)
    assert (process.returncode, "penstock keys create" in said) == (2, True), said
