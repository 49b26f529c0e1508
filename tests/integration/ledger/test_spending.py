"""What tenants and lanes have cost: the sums of all jobs are those of each job, on both databases,
and unknown is unknown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock_cli.commands.results import costs_by, table
from penstock_cli.connect import Books
from penstock_cli.main import command_line
from penstock_ledger import (
    RULE,
    Database,
    DeadLetter,
    ItemKey,
    JobStore,
    MadeWith,
    NewJob,
    OutcomeStore,
    Provenance,
    Result,
    Saving,
    Spending,
    SpendingStore,
    purge_job,
)
from penstock_ledger.model import PaidBeside
from penstock_producer.reporting.money import by_lane, money_of

PRICED = MadeWith(1, "api", "default", "1", "", 1.0, 2.0)


def job(job_id: str, tenant: str | None) -> NewJob:
    return NewJob(
        job_id,
        job_id,
        {"lane": "api", "tenant": tenant},
        {"kind": "file", "uri": "x"},
        "digest",
        total=10,
    )


def result(job_id: str, doc: str, cost: int, **more: Any) -> Result:
    given = {"reason": None, **more}
    return Result(
        ItemKey(job_id, 1, doc), 200, b"{}", "r", "m", "stop", 10, 20, cost, 100, 1, 1, **given
    )


@pytest.fixture
def db(either: Database) -> Database:
    database = either
    jobs, api, batch = (
        JobStore(database),
        OutcomeStore(database, "api"),
        OutcomeStore(database, "batch"),
    )
    for job_id, tenant in (("a", "blue"), ("b", "blue"), ("c", None), ("d", "idle")):
        jobs.create(job(job_id, tenant))
    letter = DeadLetter(
        ItemKey("a", 1, "3"), "http_400", 1, 2, "no", 400, b"{}", b"{}", prompt_tokens=3
    )
    api.settle([result("a", "1", 700), result("a", "2", 0, reason="cache")], [letter])
    api.settle([], [], left=[PaidBeside(ItemKey("a", 1, "9"), 1, 4, 5, 50)])
    batch.settle([result("b", "1", 300)], [])
    OutcomeStore(database).settle(
        [], [DeadLetter(ItemKey("c", 1, "x"), "bad_row", 0, 0, "no", None, b"", None)]
    )
    Provenance(database).note(
        [
            ("a", PRICED),
            ("b", PRICED._replace(lane="batch", usd_per_mtok_in=None, usd_per_mtok_out=None)),
        ]
    )
    return database


def test_sums_by_tenant_and_by_lane_are_those_of_the_jobs(db: Database) -> None:
    """Answers from the cache have no tokens, what was paid besides outcomes is in, and both ways
    add up to the same."""
    store = SpendingStore(db)
    tenants = {one.name: one for one in store.by_tenant(0.0)}
    assert tenants["blue"] == Spending(
        "blue", 2, 3, 1, 2 + 1 + 1 + 1 + 1, 10 + 3 + 4 + 10, 20 + 5 + 20, 1_050
    )
    assert tenants["idle"] == Spending("idle", 1, 0, 0, 0, 0, 0, 0)
    assert tenants[None][:4] == (None, 1, 0, 1)
    lanes = store.by_lane(0.0)
    assert [(one.name, one.cost_microusd) for one in lanes] == [
        ("api", 700),
        ("batch", 300),
        (None, 50),
    ]
    assert sum(one.cost_microusd for one in lanes) == sum(
        one.cost_microusd for one in tenants.values()
    )
    assert store.by_tenant(1e12) == store.by_lane(1e12) == []


def test_a_price_of_0_is_known(either: Database) -> None:
    """A model that costs nothing has cost nothing, in the sums as in the report."""
    JobStore(either).create(job("free", "green"))
    OutcomeStore(either, "api").settle([result("free", "1", 0)], [])
    free = PRICED._replace(usd_per_mtok_in=0.0, usd_per_mtok_out=0.0)
    Provenance(either).note([("free", free)])
    for by in ("tenant", "lane"):
        (shown,) = (one.to_json(by) for one in costs_by(Books(either, None, None), by, 0.0))
        assert (shown["cost_usd"], shown["jobs_without_price"]) == (0.0, 0)
    counts = OutcomeStore(either).counts("free")
    (lane,) = by_lane(counts, OutcomeStore(either).by_lane("free"), "api", [free])
    assert (lane.cost_usd, money_of(counts).words) == (0.0, "$0.00")


def test_what_answers_saved_is_added_up_and_stays_when_its_job_is_purged(either: Database) -> None:
    """By tenant and by lane, with what made answers dearer taken off, and without what they cost by
    a rule of their job. A job of a release that booked none of it makes the sum unknown, and is
    counted."""
    jobs, api = JobStore(either), OutcomeStore(either, "api")
    noted = PRICED._replace(notes_savings=True)
    for job_id, tenant in (("a", "blue"), ("b", "blue"), ("c", None)):
        jobs.create(job(job_id, tenant))
        Provenance(either).note([(job_id, noted)])
    of_flex, of_priority = Saving("tier:flex", 1, 30, 900), Saving("tier:priority", 1, 30, -400)
    by_route = Saving(f"{RULE}route:1", 1, 0, -100)
    for job_id, savings in (("a", [of_flex, of_priority]), ("b", [of_flex, by_route])):
        one = result(job_id, "1", 100)
        api.settle([one], [], savings={one.key: savings})
    purge_job(either, "a")
    assert (api.savings("b"), api.by_rules("b")) == ([of_flex], [by_route])
    ledger = Books(either, None, None)
    for by, name in (("tenant", "blue"), ("lane", "api")):
        found = {cost.of.name: cost.to_json(by) for cost in costs_by(ledger, by, 0.0)}
        assert found[name]["saved_usd"] == 0.0014
        assert found[name]["saved_by_cause"] == {
            "tier:flex": {"answers": 2, "tokens": 60, "saved_usd": 0.0018, "known_usd": 0.0018},
            "tier:priority": {
                "answers": 1,
                "tokens": 30,
                "saved_usd": -0.0004,
                "known_usd": -0.0004,
            },
        }
    assert "$0.0014" in table(costs_by(ledger, "tenant", 0.0), "tenant")[1]
    Provenance(either).note([("b", PRICED)])
    blue, *_ = (cost.to_json("tenant") for cost in costs_by(ledger, "tenant", 0.0))
    assert (blue["saved_usd"], blue["jobs_without_savings"]) == (None, 1)
    assert SpendingStore(either).savings(1e12) == {}


def test_a_cost_that_is_partly_unknown_says_so(db: Database) -> None:
    """Never 0 and never a sum that looks whole: JSON has null, and the known part beside it."""
    ledger = Books(db, None, None)
    blue = costs_by(ledger, "tenant", 0.0)[0]
    shown = blue.to_json("tenant")
    assert (
        shown["tenant"],
        shown["cost_usd"],
        shown["known_usd"],
        shown["jobs_without_price"],
    ) == (
        "blue",
        None,
        0.00105,
        1,
    )
    assert [cost.unpriced for cost in costs_by(ledger, "lane", 0.0)] == [0, 1, 0]
    lines = table(costs_by(ledger, "tenant", 0.0), "tenant")
    assert [line.split("  ")[0] for line in lines] == [
        "tenant",
        "blue",
        "(no tenant)",
        "idle",
        "together",
    ]
    assert "(some prices unknown)" in lines[1]


def test_every_combination_is_read_page_by_page(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many jobs there are, each with its own id."""
    monkeypatch.setattr("penstock_ledger.stores.provenance.ENTRIES_READ", 2)
    store = Provenance(db)
    store.note([(f"job:{number}", PRICED) for number in range(5)])
    assert sorted(job_id for job_id, _ in store.of_all()) == [
        "a",
        "b",
        *(f"job:{number}" for number in range(5)),
    ]


def test_the_command_prints_a_line_for_each_tenant(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As JSON lines for programs, and `--since` takes a duration."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.engine.url.render_as_string(hide_password=False))
    ran = CliRunner().invoke(command_line(["costs"]), ["costs", "--since", "1h", "--json"])
    assert ran.exit_code == 0, ran.output
    assert [json.loads(line)["tenant"] for line in ran.output.splitlines()] == [
        "blue",
        None,
        "idle",
    ]
