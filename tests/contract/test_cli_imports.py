"""What a command imports: half of the wall clock of a small job is imports, so heavy modules are
held out by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = (
    "sqlalchemy",
    "alembic",
    "redis",
    "pydantic",
    "celery",
    "kombu",
    "aiohttp",
    "prometheus_client",
    "prompt_toolkit",
    "flower",
    "tornado",
    "penstock_ratelimit",
    "penstock_workers",
    "penstock_workers.control",
    "penstock_simulate",
    "torch",
    "vllm",
    "boto3",
    "pyarrow",
    "backports",
    "obstore",
)


def loaded_after(code: str) -> set[str]:
    """The heavy modules that a fresh interpreter has after this code."""
    show = f"import sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{show}"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_the_table_of_commands_imports_no_heavy_module() -> None:
    """`penstock --help` and a mistyped command know every flag of every command without a library
    of the fleet."""
    code = (
        "from penstock_cli.main import command_line, COMMANDS; assert len(COMMANDS) > 15; "
        "command_line()"
    )
    assert loaded_after(code) <= {"penstock_simulate"}


@pytest.mark.parametrize("command", ["run", "worker", "submit", "status"])
def test_a_command_is_mounted_alone(command: str) -> None:
    """What one command imports costs the others nothing: not even the simulated provider is
    imported for them."""
    assert (
        loaded_after(f"from penstock_cli.main import command_line; command_line([{command!r}])")
        == set()
    )


@pytest.mark.parametrize("words", [["run", "docs.jsonl", "--out", "out"], ["serve"]])
def test_a_machine_starts_its_workers_before_it_imports_anything_heavy(words: list[str]) -> None:
    """The process that forks the workers imports beside the command line, which has not begun with
    it by then."""
    code = (
        "from penstock_cli.main import main\n"
        "import sys\n"
        "from penstock_cli.processes import standby\n"
        "class Begun(SystemExit): pass\n"
        "def begin(*_, **__): raise Begun\n"
        "standby.Standby = begin\n"
        f"sys.argv = {['penstock', *words]!r}\n"
        "try: main()\n"
        "except Begun: pass\n"
    )
    assert loaded_after(code) <= {"pydantic"}, "Typer reads flags with it"


def test_what_is_imported_before_a_fork_starts_no_thread() -> None:
    """Workers and the HTTP process are forked after it, and a fork copies only the thread that forks: a lock that
    another held stays locked."""
    code = (
        "import os, threading\n"
        "from penstock_workers.preload import preload\n"
        "from penstock_workers.lanes.registry import REGISTRY\n"
        "for lane in REGISTRY: preload(lane)\n"
        "from penstock_gateway import serve_door\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "tasks = '/proc/self/task'\n"
        "assert not os.path.isdir(tasks) or len(os.listdir(tasks)) == 1, 'a library has started "
        "threads of its own'\n"
    )
    assert "celery" in loaded_after(code)


def test_a_new_ledger_is_made_without_alembic(tmp_path: Path) -> None:
    """Most runs start with an empty SQLite file, whose tables are made at once; later migrations
    are Alembic's."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    code = f"from penstock_ledger import open_database\nopen_database({url!r}).migrate()"
    assert loaded_after(code) == {"sqlalchemy"}


def test_the_one_machine_mode_needs_no_http_client_and_no_engine() -> None:
    """Checking, feeding and showing a job of the api lane imports neither the workers' HTTP client
    nor a lane."""
    code = (
        "import penstock_cli.run.local, penstock_cli.run.fleet, penstock_workers.control, "
        "penstock_workers.lanes.registry"
    )
    assert not loaded_after(code) & {
        "aiohttp",
        "alembic",
        "celery",
        "kombu",
        "flower",
        "tornado",
        "prompt_toolkit",
        "torch",
        "vllm",
        "boto3",
    }


def test_a_worker_imports_no_command_line_of_celery() -> None:
    """Flower, a prompt and a highlighter come with Celery's own command line; a worker starts
    without it."""
    code = (
        "import penstock_cli.commands.worker\n"
        "from penstock_workers.preload import preload\n"
        "preload('api')"
    )
    loaded = loaded_after(code)
    assert {"celery", "sqlalchemy", "penstock_workers"} <= loaded, (
        "else the test would prove nothing"
    )
    assert not loaded & {
        "flower",
        "tornado",
        "prompt_toolkit",
        "alembic",
        "penstock_simulate",
        "torch",
        "vllm",
        "boto3",
    }
    assert not loaded & {"aiohttp", "penstock_workers.control"}, (
        "neither its default client nor its settings ask for them"
    )
