"""What the command line tells of keys and where they go, from the outside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from forked import run
from servers import free_port

from penstock_ledger import DeadLetter, ItemKey
from penstock_producer import Producer

CANARY = "canary-8f3b1c0d-not-a-known-shape"


def penstock(folder: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    done = run(arguments, 60, cwd=folder, env=kept | variables)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in.jsonl").write_text('{"id": "a", "text": "b"}\n')
    return tmp_path


def test_a_settings_file_names_its_receiver_first(folder: Path) -> None:
    """Before anything is asked, a penstock.toml of the working folder is named with its host and
    the variable it sends (B18)."""
    host = f"127.0.0.1:{free_port()}"
    settings = (
        f'[providers.default]\nbase_url = "http://{host}/v1"\napi_key_env = "SOMEBODYS_TOKEN"\n'
    )
    (folder / "penstock.toml").write_text(settings)
    status, told = penstock(
        folder,
        "run",
        "in.jsonl",
        "--out",
        "out",
        "--model",
        "m",
        "--prompt",
        "{text}",
        SOMEBODYS_TOKEN=CANARY,
    )
    assert status == 2
    named = (
        f"{folder / 'penstock.toml'}: provider 'default' sends documents to {host}, with the key "
        "of SOMEBODYS_TOKEN"
    )
    assert named in told
    assert told.index(named) < told.index("no server answers")
    assert CANARY not in told


def test_a_key_given_as_a_name_is_not_shown(folder: Path) -> None:
    """A key in the place of its variable's name is refused with what to write, and printed nowhere
    (B17)."""
    arguments = (
        "--out",
        "out",
        "--model",
        "m",
        "--prompt",
        "{text}",
        "--base-url",
        "https://127.0.0.1:9",
    )
    status, told = penstock(folder, "run", "in.jsonl", *arguments, "--api-key-env", CANARY)
    assert status == 2
    assert "give the NAME of the variable" in told
    assert CANARY not in told
    status, told = penstock(
        folder, "doctor", "--no-provider", PENSTOCK_PROVIDERS__DEFAULT__API_KEY_ENV=CANARY
    )
    assert status == 1
    assert "give the NAME of the variable" in told
    assert CANARY not in told


def test_printed_commands_can_be_pasted(folder: Path) -> None:
    """A job key with spaces and a semicolon is quoted inside the commands that we print (B25)."""
    key = "a b; touch pwned"
    url = f"sqlite:///{folder}/ledger.db"
    settings = {
        "PENSTOCK_DATABASE_URL": url,
        "PENSTOCK_REDIS_URL": f"redis://127.0.0.1:{free_port()}/0",
    }
    with Producer(database_url=url) as producer:
        producer._database.migrate()
        job = producer.submit(folder / "in.jsonl", {"model": "m", "prompt": "{text}"}, job_key=key)
        letter = DeadLetter(
            ItemKey(job.job_id, 1, "a"), "bad_request", 1, 1, "no", 400, b"{}", None
        )
        producer._outcomes.settle([], [letter])
    for command in (("report", key), ("purge", key), ("dlq", "show", key, "--doc", "nothing")):
        _, told = penstock(folder, *command, **settings)
        assert "penstock" in told
        assert "'a b; touch pwned'" in told, told
