"""The budgets of jobs: what is spent, and what is reserved for work under way.

All workers reserve together, for calls and provider batches.

Calls reserve in the round trip that counts their start (begin.lua), and settling exchanges that for
what they cost. What is here is for control processes, and for workers of provider batches. SQL has
what is spent: a lost Redis learns it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import redis

from penstock_ledger import keys
from penstock_ledger.in_redis.redis_scripts import Argument, chunks, registered
from penstock_ledger.model import ItemKey

OWNER_LEASE_S: Final = 60.0
"""A worker that has not renewed its claim for so long makes no calls any more."""
SCAN_STEP: Final = 1_000
_BATCH: Final = "batch:"


BOUNDLESS: Final = 9_000_000_000_000_000
"""The budget of a job that has none of its own and whose tenant has one: more than all jobs of the
world cost."""
ENDED_MAX: Final = 500
"""Jobs that leave the account of their tenant in one call."""


class TenantAccount(NamedTuple):
    """Of a tenant with a budget, over its jobs that were accepted in one month.

    In millionths of a dollar."""

    budget: int
    committed: int  # spent, and reserved by what is under way
    reserved: int

    @property
    def spent(self) -> int:
        return self.committed - self.reserved


class TenantSeen(NamedTuple):
    """A tenant's month in SQL, for the jobs that ``jobs_of_tenant`` has named."""

    turn: str  # of the account, as that has shown it
    base: int  # spent by the tenant's other jobs, and by those that have ended
    # of those named: they are in ``base``; at most ENDED_MAX, and no others are
    ended: Sequence[str]


class Account(NamedTuple):
    """Of a job with a budget, in millionths of a dollar."""

    spent: int
    reserved: int  # by what is under way
    lacking: int | None  # the least that was refused since ``tried``: so much more room it needed
    tenant: TenantAccount | None = None  # None: its tenant has no budget

    @property
    def committed(self) -> int:
        return self.spent + self.reserved


class BudgetBook:
    """Each call is atomic. Raises redis.RedisError."""

    def __init__(self, client: redis.Redis) -> None:
        self._client: Any = client
        self._script = registered(client, "budget")
        self._owners = registered(client, "owners")

    def is_known(self, job_id: str) -> bool:
        """Return False for a job's first look, or where Redis was lost.

        Then ``look`` brings what SQL knows."""
        return bool(self._client.exists(_name(job_id, "budget")))

    def look(
        self,
        job_id: str,
        budget: int,
        *,
        spent: int | None = None,
        batches: Mapping[str, int] | None = None,
    ) -> Account:
        """Return the account as it is; ``budget`` is what workers have from now on.

        ``spent`` is what SQL counts, and ``batches`` are those under way, by their tags with what
        they may cost: what Redis does not know of that is reserved."""
        found = self._budget(job_id, "look", budget, _number(spent), 0, *_pairs(batches))
        assert isinstance(found, list), "look makes it known"
        return _account(found)

    def look_with_tenant(
        self,
        job_id: str,
        budget: int,
        tenant: tuple[str, int],
        seen: TenantSeen | None,
        *,
        spent: int | None = None,
        batches: Mapping[str, int] | None = None,
    ) -> Account | None:
        """Do ``look`` at a job whose tenant has a budget.

        ``tenant`` is the key of its account (``keys.tenant_month``), and that budget. It is None
        where ``seen`` is missing and has to be brought, or other jobs have come into the account
        since."""
        name, limit = tenant
        of_tenant: list[str | int] = [name, limit, "", ""]
        if seen is not None:
            of_tenant = [
                name,
                limit,
                seen.base,
                seen.turn,
                *map(keys.job_scope, seen.ended[:ENDED_MAX]),
            ]
        given = (budget, _number(spent), len(of_tenant), *of_tenant, *_pairs(batches))
        found = self._budget(job_id, "look", *given)
        return _account(found) if isinstance(found, list) else None

    def jobs_of_tenant(self, name: str) -> tuple[str, frozenset[str]]:
        """Return the turn of a tenant's account, and the jobs that are in it."""
        with self._client.pipeline(transaction=True) as pipe:
            pipe.hget(name, "turn")
            pipe.hkeys(f"{name}:jobs")
            turn, scopes = pipe.execute()
        return (turn or b"0").decode(), frozenset(
            scope.decode().removeprefix(keys.job_scope("")) for scope in scopes
        )

    def reserve_batch(
        self, job_id: str, budget: int, tag: str, amount: int, *, spent: int
    ) -> tuple[bool, Account] | None:
        """Reserve for a provider batch before it is created.

        This replaces what is reserved for it already; False and nothing where there is no room.
        None where Redis knows nothing of the job's budget: ``look`` comes first."""
        found = self._budget(job_id, "reserve", budget, spent, f"{_BATCH}{tag}", amount)
        return (found[3] == b"1", _account(found)) if isinstance(found, list) else None

    def end_batch(self, job_id: str, tag: str, *, spent: int) -> None:
        """Note that nothing of a batch is under way any more; what it cost is in ``spent``."""
        self._budget(job_id, "give_back", spent, f"{_BATCH}{tag}", "")

    def seen(self, job_id: str) -> Account | None:
        """Return the account as it is; None where Redis knows of no budget of this job."""
        found = self._budget(job_id, "show")
        return _account(found) if isinstance(found, list) else None

    def tried_again(self, job_id: str) -> None:
        """See anew what lacks: what was refused goes back to the workers."""
        self._budget(job_id, "tried")

    def lift(self, job_id: str) -> None:
        """Note that the job has no budget any more."""
        self._client.delete(*(_name(job_id, part) for part in ("budget", "account", "reserved")))

    def relearn(self, job_id: str) -> None:
        """Forget what Redis knows, which may have lost a part.

        The next ``look`` brings what SQL knows.

        Calls under way keep what is reserved for them.
        """
        self._budget(job_id, "relearn")

    def renew(self, owner: str) -> None:
        """Keep the reservations of a worker that makes calls: it says that it lives."""
        self._owners([keys.BUDGET_OWNERS], [owner, OWNER_LEASE_S])

    def calls(self, job_id: str) -> dict[ItemKey, str]:
        """Return what is reserved for documents, as it stands."""
        found = dict[ItemKey, str]()
        for name, entry in self._client.hscan_iter(_name(job_id, "reserved"), count=SCAN_STEP):
            generation, _, doc_id = name.decode().partition(":")
            if generation.isdecimal():  # else it is a batch's
                found[ItemKey(job_id, int(generation), doc_id)] = entry.decode()
        return found

    def end_calls(self, job_id: str, calls: Mapping[ItemKey, str]) -> None:
        """End what is reserved for these documents, where it stands as ``calls`` found it."""
        self.give_back(
            job_id, {f"{key.generation}:{key.doc_id}": entry for key, entry in calls.items()}
        )

    def stray(self, job_id: str, open_batches: Iterable[str]) -> dict[str, str]:
        """Return reservations of dead workers, and of batches that are not open.

        They are by their names, as they stand."""
        tags, found = set(open_batches), dict[str, str]()
        now = self._client.time()[0]
        entries = self._client.hscan_iter(_name(job_id, "reserved"), count=SCAN_STEP)
        for chunk in chunks(entries, SCAN_STEP):
            pairs = [(name.decode(), entry.decode()) for name, entry in chunk]
            calls = [pair for pair in pairs if not pair[0].startswith(_BATCH)]
            owners = sorted({_owner(entry) for _, entry in calls})
            seen = self._client.zmscore(keys.BUDGET_OWNERS, owners) if owners else []
            # the dead are forgotten when another renews: where none makes calls, none does
            dead = {
                owner
                for owner, at in zip(owners, seen, strict=True)
                if at is None or abs(now - float(at)) > OWNER_LEASE_S
            }
            found.update((name, entry) for name, entry in calls if _owner(entry) in dead)
            found.update(
                (name, entry)
                for name, entry in pairs
                if name.startswith(_BATCH) and name.removeprefix(_BATCH) not in tags
            )
        return found

    def give_back(self, job_id: str, reservations: Mapping[str, str]) -> int:
        """Give back reservations that still stand as they were found; return their sum."""
        before = self.seen(job_id)
        for chunk in chunks(reservations.items()):
            self._budget(job_id, "give_back", "", *(part for pair in chunk for part in pair))
        after = self.seen(job_id)
        return 0 if before is None or after is None else max(0, before.reserved - after.reserved)

    def _budget(self, job_id: str, asked: str, *arguments: Argument) -> list[bytes] | int:
        """Return the figures of a job's budget.

        They are spent, reserved, the least that was refused, whether it was reserved, and three
        figures of a tenant with a budget; a number where no budget is known, or what is known of
        the tenant has to be brought."""
        given = [keys.job_scope(job_id), asked, *arguments]
        found: list[bytes] | int = self._script([], given)
        return found


def _account(found: list[bytes]) -> Account:
    spent, reserved, lacking = found[:3]
    tenant = TenantAccount(*map(int, found[4:7])) if len(found) > 4 else None
    return Account(int(spent), int(reserved), int(lacking) if lacking else None, tenant)


def _pairs(batches: Mapping[str, int] | None) -> list[str | int]:
    return [part for pair in (batches or {}).items() for part in pair]


def _owner(entry: str) -> str:
    return entry.rpartition(" ")[2]


def _number(value: int | None) -> int | str:
    return "" if value is None else value


def _name(job_id: str, part: str) -> str:
    return f"{keys.job_scope(job_id)}:{part}"
