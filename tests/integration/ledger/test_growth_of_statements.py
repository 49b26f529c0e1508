"""Work of every method of every SQL store, in a ledger and in one with many times its rows: it stays
the same, or this page says why it may grow.

Work is counted and not timed: instructions of SQLite's machine, or rows that PostgreSQL has read.
What has no case here fails the test: methods are found by looking at the stores.
"""

from __future__ import annotations

import inspect
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count, islice
from pathlib import Path
from types import GeneratorType
from typing import Any, Final

import pytest
from servers import Postgres
from sqlalchemy import Table, event, insert, select
from store_cases import (
    CASES,
    T,
    furnish,
    key,
    opened,
    stores,
    writing_methods,
)

from penstock_ledger import (
    ApiKeyStore,
    CommitOrder,
    Database,
    DoorBatchStore,
    DoorCallStore,
    DoorFiles,
    EndedSessions,
    EqualRequestStore,
    JobPages,
    JobStore,
    LaneMoves,
    OutcomeStore,
    Provenance,
    ProviderBatchStore,
    RemainderStore,
    RunStore,
    ScheduleStore,
    SourceKeys,
    SpendingStore,
    Spool,
    StepsTaken,
    WebhookStore,
)
from penstock_ledger.door_stores.batches import BatchesAsked
from penstock_ledger.door_stores.spending import (
    TenantBudgets,
    TenantCosts,
    month_of,
)
from penstock_ledger.model import JobState
from penstock_ledger.schedules.noticed import NoticedStore
from penstock_ledger.sql.tables import metadata
from penstock_ledger.stores.live import LiveJobs

KEYS: Final = [key("r1"), key("l1"), key("d1")]

# What only reads, on the ledger of `furnish`.
READING: Final[dict[type, dict[str, Callable[[Any], Any]]]] = {
    ApiKeyStore: {
        "of_digest": lambda store: store.of_digest(b"x"),
        "get": lambda store: store.get("k"),
        "tenants_of": lambda store: store.tenants_of(["k"]),
        "list": lambda store: store.list(),
        "page": lambda store: store.page(T, limit=9),
        "any_made": lambda store: store.any_made(),
    },
    ProviderBatchStore: {
        "failed_in_a_row": lambda store: store.failed_in_a_row("job-a", 3, "x"),
        "tokens_beside": lambda store: store.tokens_beside(store.get("b1")),
        "spent": lambda store: store.spent("job-a"),
        "may_cost": lambda store: store.may_cost("job-a"),
        "tags_of": lambda store: store.tags_of("job-a"),
        "to_hand_over": lambda store: store.to_hand_over("job-a"),
        "holds_documents": lambda store: store.holds_documents("job-a", 1),
        "get": lambda store: store.get("b1"),
        "is_handed_over": lambda store: store.is_handed_over("b1"),
        "open_of": lambda store: store.open_of("job-a"),
        "is_busy": lambda store: store.is_busy("job-a"),
        "open_tags": lambda store: store.open_tags(),
        "packed_waiting": lambda store: store.packed_waiting("p"),
        "of_job": lambda store: store.of_job("job-a", 9),
        "sums": lambda store: store.sums("job-a"),
        "created": lambda store: store.created("job-a"),
        "unread": lambda store: store.unread("job-a"),
        "open_times": lambda store: store.open_times("job-a"),
        "lasted": lambda store: store.lasted("p", 9),
        "kept_ids": lambda store: store.kept_ids("b2"),
    },
    CommitOrder: {
        "latest": lambda store: store.latest("job-a", 9),
        "last": lambda store: store.last("job-a"),
        "read": lambda store: store.read("job-a", page=9),
    },
    DoorBatchStore: {
        "get": lambda store: store.get("batch_1"),
        "page": lambda store: store.page(BatchesAsked("openai", 9, T)),
        "refused": lambda store: store.refused(T, 9),
        "tallied": lambda store: store.tallied(["job-a"]),
        "any_live": lambda store: store.any_live(),
        "due": lambda store: store.due(9),
    },
    DoorCallStore: {
        "find": lambda store: store.find("t", "old"),
        "outcomes": lambda store: store.outcomes("job-a", ["r1", "l1"]),
        "open_jobs": lambda store: store.open_jobs("job-o"),
    },
    DoorFiles: {
        "get": lambda store: store.get("file-2", T),
        "written": lambda store: store.written("job-a", "in.jsonl"),
        "page": lambda store: store.page(T, limit=9),
        "bytes_of": lambda store: store.bytes_of("t"),
        "in_use": lambda store: store.in_use("file-2"),
        "deleted_before": lambda store: store.deleted_before(9e9, 9),
    },
    EndedSessions: {"is_ended": lambda store: store.is_ended("k", "s", 150)},
    EqualRequestStore: {
        "sent": lambda store: store.sent("job-a", ["digest"]),
        "answered": lambda store: store.answered("job-a", 1, 9),
        "count": lambda store: store.count("job-a"),
        "waiting": lambda store: store.waiting(KEYS),
    },
    JobStore: {
        "feeds": lambda store: store.feeds("job-a"),
        "shards": lambda store: store.shards("job-s"),
        "is_led": lambda store: store.is_led("job-a"),
        "left": lambda store: store.left(["job-a", "job-o"]),
        "get": lambda store: store.get("job-a"),
        "states": lambda store: store.states(["job-a", "job-o"]),
        "list": lambda store: store.list(9),
    },
    JobPages: {
        "page": lambda store: store.page(states=[JobState.COMPLETED], limit=9),
        "states": lambda store: store.states(["t"]),
        "counts": lambda store: store.counts(["job-a"]),
    },
    LaneMoves: {"of": lambda store: store.of("job-a")},
    LiveJobs: {"look": lambda store: store.look()},
    NoticedStore: {
        "has_room": lambda store: store.has_room("id-nightly"),
        "waiting": lambda store: store.waiting("id-nightly", 9),
    },
    OutcomeStore: {
        "by_rules": lambda store: store.by_rules("job-a"),
        "terminal": lambda store: store.terminal(KEYS),
        "counts": lambda store: store.counts("job-a"),
        "by_lane": lambda store: store.by_lane("job-a"),
        "savings": lambda store: store.savings("job-a"),
        "counts_of": lambda store: store.counts_of("job-a", 1),
        "recount": lambda store: store.recount("job-a"),
        "get": lambda store: store.get("job-a", "r1"),
        "of_generation": lambda store: store.of_generation("job-a", 1, "r1"),
        "stored_results": lambda store: store.stored_results(KEYS),
        "results": lambda store: store.results("job-a", page=9),
        "timed_results": lambda store: store.timed_results("job-a"),
        "vectors": lambda store: store.vectors("job-a", page=9),
        "spent": lambda store: store.spent("job-a", 9),
        "dead_letters": lambda store: store.dead_letters("job-a", page=9),
        "replayable": lambda store: store.replayable("job-a", 2, page=9),
        "as_of": lambda store: store.as_of("job-a", 1),
        "ended_in": lambda store: store.ended_in("job-a", 9e9, 60),
        "latencies": lambda store: store.latencies("job-a"),
        "prompt_sizes": lambda store: store.prompt_sizes("job-a"),
        "refused_lines": lambda store: store.refused_lines("job-a"),
        "refused_ids": lambda store: store.refused_ids("job-a"),
        "visible": lambda store: store.visible("job-a", ["r1", "l1"]),
        "terminal_docs": lambda store: store.terminal_docs("job-a", 1, page=9),
    },
    Provenance: {
        "of": lambda store: store.of("job-a"),
        "of_all": lambda store: store.of_all(),
        "in_use": lambda store: store.in_use("job-a"),
    },
    RemainderStore: {
        "waiting": lambda store: store.waiting(["job-a"]),
        "elsewhere": lambda store: store.elsewhere(KEYS, "b1"),
        "known": lambda store: store.known(KEYS),
        "unclaimed": lambda store: store.unclaimed("job-a", 1, page=9),
        "alike": lambda store: store.alike("job-a", 1, None, page=9),
        "of_batch": lambda store: store.of_batch("b2", page=9),
    },
    RunStore: {
        "next_to_compare": lambda store: store.next_to_compare(),
        "is_to_compare": lambda store: store.is_to_compare("id-nightly"),
        "comparison_of": lambda store: store.comparison_of("job-a"),
        "figures": lambda store: store.figures("job-a"),
        "over_answers": lambda store: store.over_answers("job-a", 9, lambda rows: len(list(rows))),
    },
    ScheduleStore: {
        "now": lambda store: store.now(),
        "get": lambda store: store.get("nightly"),
        "of_id": lambda store: store.of_id("id-nightly"),
        "firings": lambda store: store.firings("id-nightly", 9),
        "running": lambda store: store.running("id-nightly"),
        "due": lambda store: store.due(),
        "states": lambda store: store.states(9.0),
        "taken": lambda store: store.taken(store.get("nightly"), [b"f" * 16]),
        "has_taken": lambda store: store.has_taken("id-nightly"),
        "taken_between": lambda store: store.taken_between("id-nightly", b"a", b"b"),
        "list": lambda store: store.list(),
    },
    SourceKeys: {"page": lambda store: store.page("job-a", 1)},
    SpendingStore: {
        "tenants": lambda store: store.tenants(9e9),
        "by_tenant": lambda store: store.by_tenant(9e9),
        "by_lane": lambda store: store.by_lane(9e9),
        "savings": lambda store: store.savings(9e9),
    },
    Spool: {
        "take": lambda store: store.take("job-o", 9),
        "fetch": lambda store: store.fetch("job-o", 1),
        "known": lambda store: store.known("job-o", ["s1", "s9"]),
        "bodies": lambda store: store.bodies("job-o", ["s1"]),
        "count": lambda store: store.count("job-o"),
    },
    StepsTaken: {
        "latest": lambda store: store.latest("job-a"),
        "of": lambda store: store.of("job-a"),
    },
    TenantBudgets: {"of": lambda store: store.of("t"), "all": lambda store: store.all()},
    TenantCosts: {
        "usd_of": lambda store: store.usd_of("t", month_of(9e9)),
        "besides": lambda store: store.besides("t", month_of(9e9), ["job-a"]),
    },
    WebhookStore: {
        "get": lambda store: store.get("we_1", T),
        "page": lambda store: store.page(T, limit=9),
        "deliveries": lambda store: store.deliveries("we_1", 9),
        "due_in_s": lambda store: store.due_in_s(),
    },
}

# Columns that tell the rows of a table apart as it grows; where a job has many, every other row is
# of a job more. None: as many rows as processes, settings or people have made.
GROWS_BY: Final[dict[str, tuple[str, ...] | None]] = {
    "jobs": ("job_id", "job_key"),
    "feeds": ("job_id",),
    "shards": ("job_id",),
    "outcomes": ("doc_id",),
    "tallies": ("job_id",),
    "lane_tallies": ("job_id",),
    "spool": ("doc_id",),
    "source_keys": ("page",),
    "outbox": None,
    "meta": None,
    "schedules": None,
    "firings": ("planned_at", "started_job"),
    "taken_files": ("file",),
    "provider_batches": ("tag", "job_id"),
    "batch_remainders": ("job_id", "tag"),
    "batch_requests": ("digest", "doc_id"),
    "provider_batch_ids": ("tag", "job_id"),
    "noticed_files": ("file", "schedule_id"),
    "lane_moves": ("job_id",),
    "paid_beside": ("job_id",),
    "spending": ("job_id",),
    "savings": ("job_id",),
    "purged_costs": ("tenant",),
    "api_keys": ("key_id", "digest", "tenant"),
    "door_files": ("file_id",),
    "door_batches": ("batch_id", "job_id"),
    "door_calls": ("idem_key", "job_id"),
    "webhook_endpoints": ("endpoint_id", "tenant"),
    "webhook_deliveries": ("event_id",),
}
# Of the rows that are added: those that have ended, where a table has such; the others are what
# work is under way for.
ENDED: Final[dict[str, dict[str, Any]]] = {
    "jobs": {"state": "completed", "tenant": "t"},
    "feeds": {"exhausted": True, "owner": None, "lease_until": None},
    "shards": {"exhausted": True},
    "provider_batches": {"state": "settled", "settled_at": 1.0, "owner": None},
    "door_batches": {"state": "completed", "owner": None, "lease_until": None},
    "door_files": {
        "expires_at": None,
        "deleted_at": None,
    },
    "door_calls": {"expires_at": 9e9},
    "webhook_deliveries": {"next_at": None, "delivered_at": 1.0},
}


# Of what `furnish` puts nowhere: these calls leave a row.
MORE_ROWS: Final = (
    "JobStore.create",
    "OutcomeStore.settle",
    "ScheduleStore.decide",
    "ScheduleStore.forget_taken",
)
# And of these tables, which other calls fill.
OTHER_ROWS: Final[dict[str, dict[str, Any]]] = {
    "lane_moves": {
        "job_id": "job-x",
        "number": 1,
        "at": 1.0,
        "lane": "api",
        "reason": "chosen",
        "why": "why",
        "figures": "{}",
    },
    "batch_requests": {"job_id": "job-a", "digest": "d", "generation": 1, "doc_id": "r1"},
    "purged_costs": {"tenant": "t", "month": "2001-09", "cost_microusd": 1},
    "spending": {
        "job_id": "job-x",
        "generation": 1,
        "kind": "purged",
        "lane": "api",
        "shard": 0,
        "tenant": "t",
        "accepted_at": 1.0,
        "documents": 1,
        "calls": 1,
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "cost_microusd": 1,
        "unpriced": 0,
    },
}


def furnish_large(db: Database, number: int) -> None:
    """Furnish a ledger, and add so many rows to each table, alike one that it has."""
    db.migrate()
    furnish(db)
    for name in MORE_ROWS:
        CASES[name](db)()
    with db.engine.begin() as connection:
        for name, row in OTHER_ROWS.items():
            connection.execute(insert(metadata.tables[name]), row)
        for table in metadata.sorted_tables:
            if told_apart := GROWS_BY[table.name]:
                rows = [dict(row) for row in connection.execute(select(table)).mappings()]
                connection.execute(insert(table), list(alike(table, rows, told_apart, number)))
    if not db.is_sqlite:  # whose server does so by itself; files are never analysed
        db.write(lambda connection: connection.exec_driver_sql("ANALYZE"))


def alike(
    table: Table, rows: Sequence[Mapping[str, Any]], told_apart: Sequence[str], number: int
) -> Iterator[dict[str, Any]]:
    times = {column.name for column in table.columns if column.name.endswith("_at")}
    of_jobs = {"job_id"} & set(table.columns.keys())
    for n in range(1, number + 1):
        row = {name: value for name, value in rows[n % len(rows)].items() if name != "seq"}
        varied = {*times, *told_apart, *(of_jobs if n // len(rows) % 2 else ())}
        changed = {name: other(row[name], n) for name in varied if row[name] is not None}
        yield row | changed | ENDED.get(table.name, {})


def other(value: Any, n: int) -> Any:
    if isinstance(value, bytes):
        return n.to_bytes(16)
    return f"{n:06}-{value}" if isinstance(value, str) else value + n


# Work that grows with what it is asked about, and why that may be.
ALL_OF_A_JOB: Final = "reads all outcomes of a job, which a person or the end of the job asks for"
A_PAGE_OF_ALL: Final = "adds up what a person's page or command shows, over all jobs of a time"
A_PAGE: Final = "reads pages of 1,000, which the small ledger does not fill"
MADE_BY_PEOPLE: Final = "keys are made by people"
FIRINGS: Final = "a row for each planned time, 1,440 a day at most, by index of its schedule"
GROWS: Final[dict[str, str]] = {
    "ApiKeyStore.list": MADE_BY_PEOPLE,
    "ApiKeyStore.page": MADE_BY_PEOPLE,
    "ApiKeyStore.under_lock": MADE_BY_PEOPLE,
    "CommitOrder.read": "looks once for the place of the first outcome, in an index",
    "DoorFiles.bytes_of": "adds up the files of a tenant at an upload, by index",
    "DoorFiles.expire": "looks at files that have expired and are not deleted, in an index",
    "JobPages.states": "counts a tenant's jobs for the page that lists them",
    "JobStore.close": "counts the spool once, in an index",
    "JobStore.replay": "sends all dead letters of a job again",
    "OutcomeStore.as_of": A_PAGE,
    "OutcomeStore.counts_of": "counts what a generation replays, for a person",
    "OutcomeStore.ended_in": ALL_OF_A_JOB,
    "OutcomeStore.latencies": ALL_OF_A_JOB,
    "OutcomeStore.prompt_sizes": ALL_OF_A_JOB,
    "OutcomeStore.recount": ALL_OF_A_JOB,
    "OutcomeStore.refused_ids": "dead letters of a source's lines, in an index, once for a file",
    "OutcomeStore.refused_lines": "dead letters of a source's lines, in an index, once for a file",
    "OutcomeStore.timed_results": A_PAGE,
    "OutcomeStore.vectors": "reads all results of a job that has no vectors, for its file of them",
    "BatchFigures.lasted": "a row for each provider batch, of thousands of documents",
    "RunStore.comparison_of": "a row for each planned time of all schedules, for a person's report",
    "RunStore.figures": ALL_OF_A_JOB,
    "RunStore.over_answers": ALL_OF_A_JOB,
    "ScheduleStore.has_taken": "counts a bounded number of files, in an index",
    "ScheduleStore.remove": "deletes what the schedule has taken and decided",
    "ScheduleStore.running": FIRINGS,
    "SpendingStore.by_lane": A_PAGE_OF_ALL,
    "SpendingStore.by_tenant": A_PAGE_OF_ALL,
    "SpendingStore.savings": A_PAGE_OF_ALL,
    "Spool.count": "counts the spool, in an index, when a job is closed or looked at",
    "TenantBudgets.all": MADE_BY_PEOPLE,
    "TenantBudgets.of": MADE_BY_PEOPLE,
    "WebhookStore.disable": "gives up what is on its way to an endpoint",
    "WebhookStore.forget_before": "looks through the deliveries of a week, now and then",
    "WebhookStore.remove": "deletes the deliveries of an endpoint",
    "WebhookStore.test": "looks through the deliveries of an endpoint, when a person tests it",
    "purge_job": "deletes what a job has",
}


def calls() -> dict[str, Callable[[Database], Callable[[], Any]]]:
    """Every method of every store."""
    found = dict(CASES)
    for cls, methods in READING.items():
        for name, call in methods.items():
            found[getattr(cls, name).__qualname__] = partial(reading, cls, call)
    return found


def reading(cls: type, call: Callable[[Any], Any], db: Database) -> Callable[[], Any]:
    store = cls(db)

    def read() -> None:
        answer = call(store)
        if isinstance(answer, GeneratorType):
            for _ in islice(answer, 9):
                pass
            answer.close()

    return read


ROWS: Final = (200, 4_000)  # added to each table; a scan of twenty times as many is seen
# Instructions of SQLite, or rows that PostgreSQL has read, that may come on top: depths of trees,
# and pages that were not full in the small ledger.
SLACK: Final = 400


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[Path, Database]]]:
    """The small one and the large one: files to copy, and open."""
    folder, found = tmp_path_factory.mktemp("ledgers"), list[tuple[Path, Database]]()
    with ExitStack() as stack:
        for number in ROWS:
            with opened(f"sqlite:///{folder}/{number}.db") as db:
                furnish_large(db, number)
            file = folder / f"{number}.db"
            found.append((file, stack.enter_context(opened(f"sqlite:///{file}"))))
        yield found


@pytest.mark.parametrize("name", sorted(calls()))
def test_no_method_works_more_in_a_larger_ledger(
    name: str, ledgers: list[tuple[Path, Database]], tmp_path: Path
) -> None:
    """On SQLite; instructions of its machine are counted in tens."""
    steps, case = [], calls()[name]
    for file, whole in ledgers:
        if name in CASES:  # it writes
            shutil.copy(file, tmp_path / "ledger.db")
            with opened(f"sqlite:///{tmp_path}/ledger.db") as db:
                steps.append(steps_of(db, case(db)))
        else:
            steps.append(steps_of(whole, case(whole)))
    small, large = steps
    grows = large > 2 * small + SLACK
    assert grows == (name in GROWS), f"{small:,} in the small ledger, {large:,} in the large one"


def steps_of(db: Database, call: Callable[[], Any]) -> int:
    each, steps = 10, count()

    def connected(connection: Any, *_: object) -> None:
        connection.set_progress_handler(lambda: next(steps) and 0, each)

    event.listen(db.engine, "checkout", connected)
    try:
        call()
    finally:
        event.remove(db.engine, "checkout", connected)
    return next(steps) * each


@pytest.mark.whole
def test_nor_on_postgresql(postgres_server: Postgres) -> None:
    """Rows that were read are counted, by scans of tables and by indexes."""
    found: dict[str, list[int]] = defaultdict(list)
    for number in ROWS:
        template = postgres_server.new_database()
        with opened(template) as db:
            furnish_large(db, number)
        name_of_template = template.partition("?")[0].rpartition("/")[2]
        for name, case in calls().items():
            with opened(postgres_server.new_database(f"template {name_of_template}")) as db:
                call = case(db)
                before = rows_read(db)
                call()
                found[name].append(rows_read(db) - before)
    grown = {name for name, (small, large) in found.items() if large > 2 * small + SLACK}
    assert "OutcomeStore.recount" in grown, "what is read was not counted"
    assert grown <= GROWS.keys(), {name: found[name] for name in grown - GROWS.keys()}


def rows_read(db: Database) -> int:
    """Return how many rows the statements of this process have read up to now."""
    with db.engine.connect() as connection:
        connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
    with db.engine.connect() as connection:
        read = "SELECT sum(seq_tup_read) + sum(idx_tup_fetch) FROM pg_stat_user_tables"
        return int(connection.exec_driver_sql(read).scalar_one())


# What asks two other stores, and Redis.
NOT_ALONE: Final = {"TenantAccounts.budget_of", "TenantAccounts.look"}


def test_every_method_is_called() -> None:
    """A new one fails here until this page says how it is called."""
    found = {
        made.__qualname__
        for thing in stores().values()
        if inspect.isclass(thing) and "'Database'" in str(inspect.signature(thing))
        for method, made in vars(thing).items()
        if inspect.isfunction(made) and not method.startswith("_")
    }
    assert len(found) > 150, "the stores were not found"
    assert found - NOT_ALONE - writing_methods() == calls().keys() - CASES.keys()
    assert GROWS.keys() <= calls().keys()
