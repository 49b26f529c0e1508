"""Who may import whom, and how light the producer's import is."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
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
# What other packages of this distribution may import besides the names in a package's `__init__`: of each module what its
# `__all__` names. (Names in an `__init__` are for everyone, modules here are for Penstock alone.)
INTERNAL_SURFACE = {
    "penstock_ratelimit": {"for_penstock"},
    "penstock_ledger": {"errors", "keys", "lazy_names", "log_lines", "model", "redaction", "vectors"},
    "penstock_producer": {
        "acceptance", "borders", "endpoints", "errors", "feeder", "hook_paths", "lanes", "options", "outputs", "overrides",
        "repair", "settings", "sources", "sources.of_feed", "spec", "storage", "survey", "tracing", "wire",
    },
}  # fmt: skip
# For the integrator: packages whose surface is not declared yet, so that nothing is held against what others import of
# them. Each goes as soon as its modules have `__all__` and a line above.
UNDECLARED = {"penstock_workers", "penstock_cli", "penstock_gateway", "penstock_simulate"}
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


def modules(package: str) -> dict[str, Path]:
    """Every module of a package, by its dotted name."""
    found = {}
    for file in sorted(PACKAGES[package].rglob("*.py")):
        parts = file.relative_to(PACKAGES[package].parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports(file: Path) -> Iterator[tuple[str, str]]:
    """Every (module, name) that a file imports, under TYPE_CHECKING and inside functions too; "" for a whole module."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


def behind_the_face(module: str, name: str) -> bool:
    """Whether an import from another package is of something that the package does not show to others."""
    package, _, inside = module.partition(".")
    if not inside and name in INTERNAL_SURFACE[package]:
        return False
    if not inside or inside in INTERNAL_SURFACE[package]:
        return not name or name not in import_module(module).__all__
    return True


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_nothing_reaches_behind_a_face(package: str) -> None:
    """Of another package only its public names are imported, and what the modules of its internal surface name."""
    files = modules(package)
    assert files, f"no files found for {package}: the test would prove nothing"
    reached = {
        f"{name}: from {module} import {imported}"
        for name, file in files.items()
        for module, imported in imports(file)
        if (owner := module.partition(".")[0]) in INTERNAL_SURFACE
        and owner != package
        and behind_the_face(module, imported)
    }
    assert not reached, f"import it from the package, or name it in the module's __all__: {sorted(reached)}"


def test_every_package_declares_its_surface_or_is_listed() -> None:
    """The modules of each internal surface exist and have `__all__`; what is not declared is listed as such."""
    assert set(PACKAGES) == set(INTERNAL_SURFACE) | UNDECLARED
    for package, names in INTERNAL_SURFACE.items():
        for name in names:
            assert import_module(f"{package}.{name}").__all__, f"{package}.{name} has no __all__"


def loaded_by(importer: str, target: str, files: Mapping[str, Path]) -> Iterator[str]:
    """The modules that an import of ``target`` runs: its own, and the `__init__` of packages that the importer is not in."""
    parts = target.split(".")
    for end in range(1, len(parts) + 1):
        module = ".".join(parts[:end])
        if module in files and not f"{importer}.".startswith(f"{module}."):
            yield module


def circles(package: str) -> set[frozenset[str]]:
    """Modules of a package that import one another, directly or through others."""
    files = modules(package)
    edges = {
        name: {
            one for target in imports(file) for one in loaded_by(name, ".".join(filter(None, target)), files)
        } - {name}
        for name, file in files.items()
    }  # fmt: skip
    reach = {name: reachable(edges, name) for name in files}
    return {frozenset(other for other in reach[name] if name in reach[other]) for name in files if name in reach[name]}


def reachable(edges: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = edges[waiting.pop()] - found
        found |= new
        waiting += new
    return found


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_no_modules_import_one_another_in_a_circle(package: str) -> None:
    """A module can be read after those that it imports, imports for type checkers included."""
    assert modules(package), f"no files found for {package}: the test would prove nothing"
    assert circles(package) == set()


def test_importing_the_producer_is_light() -> None:
    """A service that only enqueues loads no engine, no web framework and no broker client of ours."""
    code = f"import sys, penstock_producer; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
