"""Every row of the table of faults, on SQLite and on PostgreSQL, with printed seeds; a few of them
in each run of the suite."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet import Fleet
from servers import Postgres

from penstock_cli.chaos.play import play
from penstock_cli.chaos.stage import AUTHORITY, HOOKS, Fault, begin
from penstock_cli.chaos.table import FAULTS

SEEDS = [int(seed) for seed in os.environ.get("FAULT_SEEDS", "1,2").split(",")]
QUICK = [fault for fault in FAULTS if fault.quick]
# Proxies, disks and servers of their own are in the fleets of `penstock chaos`.
HERE = [fault for fault in FAULTS if "api" in fault.lanes and fault.needs <= {"own Redis"}]


def make_fleet(folder: Path, database_url: str | None = None) -> Fleet:
    """Its workers have the hooks of chaos, and trust the provider's authority."""
    settings = {"hook_modules": json.dumps([HOOKS])}
    trusted = {"SSL_CERT_FILE": str(folder / AUTHORITY)}
    return Fleet(folder, database_url=database_url, settings=settings, variables=trusted)


def holds(fault: Fault, fleet: Fleet, seed: int) -> None:
    print(f"{fault}: FAULT_SEEDS={seed}")
    verdict = play([fault], fleet, seed)
    print(verdict)
    assert verdict.problems == ()


@pytest.fixture(scope="module")
def shared_fleet(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: Postgres
) -> Iterator[Fleet]:
    with make_fleet(tmp_path_factory.mktemp("faults"), postgres_server.new_database()) as fleet:
        begin(fleet, seed=1)
        yield fleet


@pytest.mark.parametrize("fault", QUICK, ids=str)
def test_a_fault(shared_fleet: Fleet, fault: Fault) -> None:
    """Each document has one outcome, little is paid twice, and work goes on within 90 s or the
    screen says what it waits for."""
    with shared_fleet.explained():
        holds(fault, shared_fleet, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
@pytest.mark.parametrize("fault", HERE, ids=str)
def test_all_faults(
    tmp_path: Path, request: pytest.FixtureRequest, fault: Fault, store: str, seed: int
) -> None:
    """The same for every fault there is, each on a fleet of its own."""
    url = request.getfixturevalue("postgres_url") if store == "postgresql" else None
    with make_fleet(tmp_path, url) as fleet:
        begin(fleet, seed)
        holds(fault, fleet, seed)
