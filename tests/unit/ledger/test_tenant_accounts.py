"""What a process remembers of the accounts of tenants."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock_ledger import TenantAccounts, open_database
from penstock_ledger.door_stores import spending
from penstock_ledger.in_redis.budget_book import Account, BudgetBook
from penstock_ledger.model import Job, JobState


class Book:
    """Redis, which has every account."""

    def jobs_of_tenant(self, name: str) -> tuple[int, set[str]]:
        return 1, set()

    def look_with_tenant(self, *_: Any, **__: Any) -> Account:
        return Account(0, 0, None)


def test_accounts_that_are_looked_at_no_more_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service has a tenant for each of its customers, and each has an account a month."""
    now = 0.0
    monkeypatch.setattr(spending, "time", SimpleNamespace(monotonic=lambda: now))
    database = open_database(f"sqlite:///{tmp_path}/ledger.db")
    database.migrate()
    accounts = TenantAccounts(database, cast(BudgetBook, Book()))
    for number in range(40):
        now += spending.BUDGETS_S
        name, spec = f"job_{number}", {"tenant": f"tenant-{number}"}
        job = Job(name, name, spec, {}, name, JobState.RUNNING, None, 1, 1, 0.0, None)
        assert accounts.budget_of(job) is None
        accounts.look(job, 1_000_000, 5.0)
    assert len(accounts._read_at) <= spending.BASE_S / spending.BUDGETS_S + 1
    database.close()
