"""Who may import whom, and how light the producer's import is."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "penstock_producer": ROOT / "producer/penstock_producer",
    "penstock_workers": ROOT / "workers/penstock_workers",
    "penstock_ratelimit": ROOT / "ratelimit/penstock_ratelimit",
    "penstock_ledger": ROOT / "ledger/penstock_ledger",
    "penstock_gateway": ROOT / "gateway/penstock_gateway",
    "penstock_cli": ROOT / "cli/penstock_cli",
    "penstock_simulate": ROOT / "simulate/penstock_simulate",
}
MAY_IMPORT = {
    "penstock_producer": {"penstock_ledger"},
    "penstock_workers": {"penstock_producer", "penstock_ledger", "penstock_ratelimit"},
    "penstock_ratelimit": set[str](),
    "penstock_ledger": set[str](),
    "penstock_gateway": {"penstock_producer", "penstock_ledger"},
    "penstock_cli": set(PACKAGES),
    "penstock_simulate": set[str](),
}
ROLE_FOLDERS = {"producer", "workers", "ratelimit", "ledger", "gateway", "cli", "simulate"}
HEAVY = (
    "torch", "vllm", "pandas", "boto3", "fastapi", "celery", "kombu", "aiohttp", "typer", "rich", "alembic", "opentelemetry",
)  # fmt: skip


def imported_names(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_imports_point_one_way(package: str) -> None:
    """A package imports only those below it, and never through a role folder (a second identity of the same module)."""
    files = sorted(PACKAGES[package].rglob("*.py"))
    assert files, f"no files found for {package}: the test would prove nothing"
    for file in files:
        ours = imported_names(file) & (set(PACKAGES) | ROLE_FOLDERS)
        assert ours <= MAY_IMPORT[package] | {package}, f"{file.relative_to(ROOT)} imports {sorted(ours)}"


def test_importing_the_producer_is_light() -> None:
    """A service that only enqueues loads no engine, no web framework and no broker client of ours."""
    code = f"import sys, penstock_producer; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
