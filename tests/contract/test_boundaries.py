"""Who may import whom, and how light the producer's import is."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "penstock": ROOT / "penstock",
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
    "penstock": {"penstock_producer", "penstock_cli"},
    "penstock_cli": set(PACKAGES) - {"penstock"},
    "penstock_simulate": set[str](),
}
# What other packages of this distribution may import besides the names in a package's `__init__`:
# of each module what its `__all__` names. (Names in an `__init__` are for everyone, modules here
# are for Penstock alone.)
INTERNAL_SURFACE = {
    "penstock_ratelimit": {"for_penstock"},
    "penstock_ledger": {
        "errors",
        "job_state",
        "keys",
        "lazy_names",
        "lone_surrogates",
        "model",
        "reasons",
        "redaction",
        "schedules.model",
        "sql.postgres",
        "telemetry.collector",
        "telemetry.metrics",
        "texts",
        "vectors",
    },
    "penstock_producer": {
        "accepting.acceptance",
        "accepting.remote_limits",
        "accepting.estimates",
        "accepting.hook_paths",
        "accepting.new_jobs",
        "accepting.prompt_caching",
        "accepting.quality",
        "accepting.results_probe",
        "accepting.sampling",
        "accepting.survey",
        "bucket.place",
        "dialects.answers",
        "dialects.assembling",
        "dialects.pieces",
        "dialects.prompt_caches",
        "dialects.translation",
        "errors",
        "feed.feeder",
        "feed.feeder_plan",
        "feed.leased_feed",
        "feed.queues",
        "feed.routes",
        "feed.tracing",
        "feed.wire",
        "job.endpoints",
        "public_hosts",
        "job.fallback",
        "job.lanes",
        "job.levers",
        "job.options",
        "job.params",
        "job.repeats",
        "job.request_body",
        "job.response_schema",
        "job.routing",
        "job.sinks",
        "job.spec",
        "job.targets",
        "job.tiers",
        "jobfile",
        "json_bounds",
        "open_job",
        "operations",
        "prices",
        "reporting.forms",
        "outputs",
        "parts",
        "pins",
        "planning.flow",
        "planning.prefixes",
        "planning.rented_caches",
        "planning.sizing",
        "refusals",
        "reporting.account",
        "reporting.advice",
        "reporting.batches",
        "reporting.by_rules",
        "reporting.timeline",
        "reporting.engines",
        "reporting.money",
        "reporting.pauses",
        "reporting.reasons",
        "reporting.text",
        "reporting.words",
        "rows",
        "schedules.drift",
        "schedules.events",
        "schedules.timetable",
        "settings",
        "source_formats",
        "sources",
        "sources.blobs.s3",
        "sources.forms.media",
        "sources.kept",
        "sources.of_feed",
        "sources.overrides",
        "storage",
        "tables.columns",
        "tables.database",
        "tables.reading",
        "tables.sheets",
        "tables.with_source",
    },
    "penstock_workers": {
        "__main__",
        "amqp_address",
        "broker.amqp.connect",
        "broker.lease_scripts",
        "celery_app.app",
        "celery_app.door_records",
        "celery_app.probe",
        "control",
        "control.lanes.forecast",
        "errors",
        "item.failures",
        "item.run.runs",
        "lane_changes",
        "lanes.devices",
        "lanes.one_run",
        "lanes.registry",
        "metrics",
        "preload",
        "settings",
        "stores",
    },
    "penstock_simulate": {"hostile"},
    "penstock_gateway": set(),
    "penstock_cli": {"errors", "run.child", "run.preview", "state"},
    "penstock": set(),
}
# Of a checkout only: no user installs them.
WITH_ROOMS = PACKAGES | {"benchmarks": ROOT / "benchmarks", "kubelet": ROOT / "tests/kubelet"}
# Rooms (folders) import one another one way only. These imports (from, to) go the other way.
OTHER_WAY: dict[str, dict[tuple[str, str], str]] = {
    "penstock_ledger": {
        (
            "stores.jobs",
            "door_stores.events",
        ): "a job's end is one transaction with its event; the module imports no store",
    },
    "penstock_workers": {
        (
            "settings",
            "lanes.lane_fields",
        ): "each lane brings its own settings; the modules import nothing else",
        ("lanes.lane_fields", "lanes.*.settings"): "as above",
        (
            "lanes.gpu.engine.*",
            "lanes.gpu.settings",
        ): "the lane's settings are read by all of it, and import nothing of it",
        ("lanes.gpu.requests.*", "lanes.gpu.settings"): "as above",
        ("lanes.gpu.children.*", "lanes.gpu.settings"): "as above",
        (
            "lanes.gpu.engine.*",
            "lanes.gpu.plugin",
        ): "vLLM finds the module by its name; it imports nothing",
        (
            "lanes.registry",
            "lanes.*.row",
        ): "the list of all lanes; a lane's row is made with lanes/row.py",
    },
}
ROLE_FOLDERS = {"producer", "workers", "ratelimit", "ledger", "gateway", "cli", "simulate"}
HEAVY = (
    "torch",
    "vllm",
    "pandas",
    "boto3",
    "fastapi",
    "celery",
    "kombu",
    "aiohttp",
    "typer",
    "rich",
    "alembic",
    "opentelemetry",
    "pyarrow",
    "backports",
    "obstore",
)


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_imports_point_one_way(package: str) -> None:
    """A package imports only those below it, and never through a role folder (a second identity of
    the same module)."""
    files = sorted(PACKAGES[package].rglob("*.py"))
    assert files, f"no files found for {package}: the test would prove nothing"
    for file in files:
        ours = {module.partition(".")[0] for module, _ in imports(file)} & (
            set(PACKAGES) | ROLE_FOLDERS
        )
        assert ours <= MAY_IMPORT[package] | {package}, (
            f"{file.relative_to(ROOT)} imports {sorted(ours)}"
        )


def modules(package: str) -> dict[str, Path]:
    """Every module of a package, by its dotted name."""
    found = {}
    for file in sorted(WITH_ROOMS[package].rglob("*.py")):
        parts = file.relative_to(WITH_ROOMS[package].parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


@cache
def imports(file: Path) -> Sequence[tuple[str, str]]:
    """Every (module, name) that a file imports, under TYPE_CHECKING and inside functions too; ""
    for a whole module."""
    found: list[tuple[str, str]] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found += ((node.module, alias.name) for alias in node.names)
    return found


def behind_the_face(module: str, name: str) -> bool:
    """Whether an import from another package is of something that the package does not show to
    others."""
    package, _, inside = module.partition(".")
    if not inside and name in INTERNAL_SURFACE[package]:
        return False
    if not inside or inside in INTERNAL_SURFACE[package]:
        return not name or name not in import_module(module).__all__
    return True


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_nothing_reaches_behind_a_face(package: str) -> None:
    """Of another package only its public names are imported, and what the modules of its internal
    surface name."""
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
    assert not reached, (
        f"import it from the package, or name it in the module's __all__: {sorted(reached)}"
    )


def test_every_package_declares_its_surface() -> None:
    """Each package says what it shows to others, and each module of its internal surface does in
    its `__all__`."""
    assert set(PACKAGES) == set(INTERNAL_SURFACE)
    for package, names in INTERNAL_SURFACE.items():
        assert isinstance(import_module(package).__all__, list)
        for name in names:
            assert import_module(f"{package}.{name}").__all__, f"{package}.{name} has no __all__"


def loaded_by(importer: str, target: str, files: Mapping[str, Path]) -> Iterator[str]:
    """The modules that an import of ``target`` runs: its own, and the `__init__` of packages that
    the importer is not in."""
    parts = target.split(".")
    for end in range(1, len(parts) + 1):
        module = ".".join(parts[:end])
        if module in files and not f"{importer}.".startswith(f"{module}."):
            yield module


def module_edges(package: str) -> dict[str, set[str]]:
    """Which modules of its own package each module imports."""
    files = modules(package)
    return {
        name: {
            one
            for target in imports(file)
            for one in loaded_by(name, ".".join(filter(None, target)), files)
        }
        - {name}
        for name, file in files.items()
    }


def circles(edges: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """Those that point at one another, directly or through others."""
    reach = {name: reachable(edges, name) for name in edges}
    return {
        frozenset(other for other in reach[name] if name in reach[other])
        for name in edges
        if name in reach[name]
    }


def reachable(edges: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = edges[waiting.pop()] - found
        found |= new
        waiting += new
    return found


@pytest.mark.parametrize("package", sorted(WITH_ROOMS))
def test_no_modules_import_one_another_in_a_circle(package: str) -> None:
    """A module can be read after those that it imports, imports for type checkers included."""
    edges = module_edges(package)
    assert any(edges.values()), f"no imports found in {package}"
    assert circles(edges) == set()


def room(module: str, files: Mapping[str, Path]) -> str:
    """The folder that a module lies in; a module beside the folders of its package is a room of its
    own."""
    if files[module].name == "__init__.py":
        return module
    folder = module.rpartition(".")[0]
    return folder if "." in folder else module


def imported_modules(file: Path, files: Mapping[str, Path]) -> Iterator[str]:
    """The modules whose names a file imports, without the packages around them."""
    for module, name in imports(file):
        whole = f"{module}.{name}"
        if whole in files or module in files:
            yield whole if whole in files else module


def room_edges(package: str, left_out: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Which rooms of its own package each room imports."""
    files = modules(package)
    patterns = [
        (f"{package}.{importer}", f"{package}.{imported}") for importer, imported in left_out
    ]
    edges: dict[str, set[str]] = {room(name, files): set() for name in files}
    for name, file in files.items():
        for other in imported_modules(file, files):
            if not any(
                fnmatch(name, importer) and fnmatch(other, imported)
                for importer, imported in patterns
            ):
                edges[room(name, files)].add(room(other, files))
    return {one: others - {one} for one, others in edges.items()}


@pytest.mark.parametrize("package", sorted(WITH_ROOMS))
def test_no_rooms_import_one_another_in_a_circle(package: str) -> None:
    """A folder can be read after those that it imports; each exception is listed with its reason,
    and is needed."""
    exceptions = OTHER_WAY.get(package, {})
    assert circles(room_edges(package, exceptions)) == set()
    for one in exceptions:
        others = [other for other in exceptions if other != one]
        assert circles(room_edges(package, others)), (
            f"the exception {one} is no longer needed: remove it"
        )


def test_importing_penstock_costs_next_to_nothing() -> None:
    """A notebook's first line brings no library with it, ours not either: a call imports what it
    needs."""
    code = (
        "import sys; before = set(sys.modules); import penstock; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert set(loaded) <= {"penstock", *sys.stdlib_module_names}
    assert len(import_module("penstock").__all__) > 5


def test_importing_the_producer_is_light() -> None:
    """A service that only enqueues loads no engine, no web framework and no broker client."""
    code = (
        f"import sys, penstock_producer; print(*[name for name in {HEAVY!r} if name in "
        "sys.modules])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == []
