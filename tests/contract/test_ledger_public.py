"""What others may rely on: the ledger's public names, its light import, and scripts that document
their keys."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from importlib.resources import files
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest
from contracts import KEY_LINE

import penstock_ledger
import penstock_producer
from penstock_ledger import errors as ledger_errors
from penstock_ledger import keys
from penstock_ledger.errors import LedgerError
from penstock_ledger.in_redis import redis_scripts
from penstock_ledger.in_redis.answer_book import AnswerBook
from penstock_ledger.in_redis.budget_book import BudgetBook
from penstock_ledger.in_redis.door_limits import DoorLimits
from penstock_ledger.in_redis.queue_book import QueueBook
from penstock_ledger.in_redis.seen import CauseBook

# made when it is imported, which types do not see
PUBLIC: list[str] = vars(penstock_ledger)["__all__"]
SCRIPTS = sorted(
    entry.name
    for entry in (files("penstock_ledger") / "scripts").iterdir()
    if entry.name.endswith(".lua")
)


def test_public_names_exist_and_are_sorted_out() -> None:
    """Every name in __all__ is there, once, and every public class of errors.py is among them."""
    assert len(set(PUBLIC)) == len(PUBLIC)
    assert [name for name in PUBLIC if not hasattr(penstock_ledger, name)] == []
    errors = [name for name, _ in inspect.getmembers(ledger_errors, inspect.isclass)]
    assert {
        name for name in errors if issubclass(getattr(ledger_errors, name), LedgerError)
    } <= set(PUBLIC)


@pytest.mark.parametrize("package", [penstock_ledger, penstock_producer])
def test_type_checkers_see_the_names_that_load_at_run_time(package: ModuleType) -> None:
    """The imports under TYPE_CHECKING are those of the list from which names are loaded on first
    use."""
    tree = ast.parse(Path(str(package.__file__)).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(map(str, seen)) == package.__all__ == dir(package)
    for name, module in seen.items():
        assert getattr(package, str(name)) is getattr(import_module(str(module)), str(name))


def test_importing_the_ledger_does_not_load_alembic_or_a_driver() -> None:
    """Migrations and drivers are loaded when they are used."""
    code = (
        "import sys, penstock_ledger; print(*{'alembic', 'psycopg', 'celery', 'mako'} & "
        "set(sys.modules))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == []


# Of each script that is not about items, the method that calls it.
STUBS = {
    "admit.lua": DoorLimits.admit,
    "budget.lua": BudgetBook.look,
    "causes.lua": CauseBook.note,
    "forget_queues.lua": QueueBook.forget_idle,
    "heartbeat.lua": redis_scripts.FleetScripts.heartbeat,
    "lead.lua": AnswerBook.ask,
    "move.lua": QueueBook.move,
    "note_found.lua": QueueBook.note_found,
    "note_queues.lua": QueueBook.note,
    "owners.lua": BudgetBook.renew,
    "present.lua": redis_scripts.FleetScripts.present,
    "see.lua": redis_scripts.FleetScripts.see,
    "show_found.lua": QueueBook.show_found,
}


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in SCRIPTS
        if name.removesuffix(".lua") not in chain(*redis_scripts.SHARED.values())
    ],
)
def test_every_script_documents_its_keys_and_has_a_stub(name: str) -> None:
    """Before its first line of code a script names all KEYS and ARGV that it uses; Python calls it
    by a typed method."""
    source = (files("penstock_ledger") / "scripts" / name).read_text()
    head = source[: source.index("\n\n")]
    code = source[len(head) :]
    for number in range(1, 9):
        assert (f"KEYS[{number}]" in code) <= (f"KEYS[{number}]" in head)
    assert ("ARGV" in code) <= ("ARGV" in head)
    assert ("Returns" in head) or name == "heartbeat.lua"
    stub = STUBS.get(name) or getattr(redis_scripts.ItemScripts, name.removesuffix(".lua"))
    assert callable(stub)


def documented(key: str) -> bool:
    """Whether the table on top of keys.py, which is a contract, has a row for this key."""
    rows = [row for row, _ in KEY_LINE.findall(keys.__doc__ or "")]
    assert len(rows) > 40
    return any(
        re.fullmatch(
            "".join("[^:]+" if part.startswith("<") else re.escape(part) for part in parts), key
        )
        for parts in (re.split(r"(<[^>]+>)", row) for row in rows)
    )


# Parts of names, numbers and words of values.
NO_KEYS = {
    *("DEAD", "DONE", "JOB_ID", "PREFIX", "PURGED", "QUEUE_PREFIX", "bucket_count", "buckets_for"),
    *("done_bucket", "done_field", "is_queue_of", "lane_queue", "job_scope", "feed_scope"),
    *("warm_prefix", "EPOCH_REBUILD", "OLDER_UNACKED", "OLDER_UNACKED_INDEX"),
    *("ANSWERED", "passed_to"),  # channels
}


@pytest.mark.parametrize("name", sorted(set(keys.__all__) - NO_KEYS))
def test_keys_are_built_as_documented(name: str) -> None:
    """A key that is renamed in the code is renamed in the table, and so in its contract."""
    built = getattr(keys, name)
    if callable(built):
        built = built(*(["penstock.api"] * len(inspect.signature(built).parameters)))
    if isinstance(built, str):
        assert documented(built), built


def test_what_is_appended_to_a_prefix_is_documented_and_is_so_in_the_code() -> None:
    """Scripts put the last word behind the prefix of a job or a generation."""
    folder = Path(keys.__file__).parent
    code = (
        "".join(
            path.read_text("utf-8")
            for path in folder.rglob("*")
            if path.suffix in {".lua", ".py"} and path != Path(keys.__file__)
        )
        + inspect.getsource(keys).partition("PREFIX: Final")[2]
    )
    rows = re.findall(r"^penstock:<job>(?::<gen>)?:(\w+)", keys.__doc__ or "", re.MULTILINE)
    assert len(rows) > 10
    assert [word for word in rows if not re.search(rf"[:\"']{word}\b", code)] == []
    assert keys.feed_scope("j", 2) == "penstock:j:2"
    assert keys.warm_prefix("j", "b") == "penstock:j:warm:b"
