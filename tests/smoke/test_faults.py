"""Every row of the table of faults, on SQLite and on PostgreSQL, with printed seeds; a few of them
in each run of the suite."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import faults
import pytest
from fault_table import SCENARIOS
from faults import Scenario
from fleet import Fleet
from servers import Postgres

SEEDS = [int(seed) for seed in os.environ.get("FAULT_SEEDS", "1,2").split(",")]
QUICK = [scenario for scenario in SCENARIOS if scenario.quick]


@pytest.fixture(scope="module")
def shared_fleet(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: Postgres
) -> Iterator[Fleet]:
    with faults.make_fleet(
        tmp_path_factory.mktemp("faults"), postgres_server.new_database()
    ) as fleet:
        faults.begin(fleet, seed=1)
        yield fleet


@pytest.mark.parametrize("scenario", QUICK, ids=str)
def test_a_fault(shared_fleet: Fleet, scenario: Scenario) -> None:
    """Each document has one outcome, little is paid twice, and work goes on within 90 s or the
    screen says what it waits for."""
    with shared_fleet.explained():
        faults.play(scenario, shared_fleet, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_all_faults(
    tmp_path: Path, request: pytest.FixtureRequest, scenario: Scenario, store: str, seed: int
) -> None:
    """The same for every fault there is, each on a fleet of its own."""
    url = request.getfixturevalue("postgres_url") if store == "postgresql" else None
    with faults.make_fleet(tmp_path, url) as fleet:
        faults.begin(fleet, seed, https=scenario.https)
        faults.play(scenario, fleet, seed)
