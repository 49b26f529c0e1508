"""What a command imports: half of the wall clock of a small job is imports, so heavy modules are held out by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "sqlalchemy", "alembic", "redis", "pydantic", "celery", "kombu", "aiohttp", "prometheus_client", "prompt_toolkit",
    "flower", "tornado", "penstock_ratelimit", "penstock_workers", "penstock_workers.control", "penstock_simulate",
    "torch", "vllm", "boto3",
)  # fmt: skip


def loaded_after(code: str) -> set[str]:
    """The heavy modules that a fresh interpreter has after this code."""
    show = f"import sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{show}"], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_the_table_of_commands_imports_no_heavy_module() -> None:
    """`penstock --help` and a mistyped command know every flag of every command without a library of the fleet."""
    code = "from penstock_cli.main import command_line, COMMANDS; assert len(COMMANDS) > 15; command_line()"
    assert loaded_after(code) <= {"penstock_simulate"}


@pytest.mark.parametrize("command", ["run", "worker", "submit", "status"])
def test_a_command_is_mounted_alone(command: str) -> None:
    """What one command imports costs the others nothing: not even the simulated provider is imported for them."""
    assert loaded_after(f"from penstock_cli.main import command_line; command_line([{command!r}])") == set()


def test_run_starts_its_workers_before_it_imports_anything_heavy() -> None:
    """The worker processes of `penstock run` import beside the command line, which has not begun with it by then."""
    code = (
        "from penstock_cli.main import main\n"
        "import sys\n"
        "from penstock_cli.run import standby\n"
        "class Begun(SystemExit): pass\n"
        "def begin(lane, count): raise Begun\n"
        "standby.Standby = begin\n"
        "sys.argv = ['penstock', 'run', 'docs.jsonl', '--out', 'out']\n"
        "try: main()\n"
        "except Begun: pass\n"
    )
    assert loaded_after(code) <= {"pydantic"}, "Typer reads flags with it"


def test_the_one_machine_mode_needs_no_http_client_and_no_engine() -> None:
    """Checking, feeding and showing a job of the api lane imports neither the workers' HTTP client nor a lane."""
    code = "import penstock_cli.run.local, penstock_cli.run.fleet, penstock_workers.control, penstock_workers.lanes.registry"
    assert not loaded_after(code) & {
        "aiohttp",
        "celery",
        "flower",
        "tornado",
        "prompt_toolkit",
        "torch",
        "vllm",
        "boto3",
    }


def test_a_worker_imports_no_command_line_of_celery() -> None:
    """Flower, a prompt and a highlighter come with Celery's own command line; a worker starts without it."""
    code = "import penstock_cli.commands.worker\nfrom penstock_workers.preload import preload\npreload('api')"
    loaded = loaded_after(code)
    assert {"celery", "sqlalchemy", "penstock_workers"} <= loaded, "else the test would prove nothing"
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
