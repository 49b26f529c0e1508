"""What SQL stores do, method by method: a furnished ledger, and a call of each method on it.

Tests that hold something of every method ask here; what has no case fails them.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any

import penstock_ledger.door_stores
import penstock_ledger.schedules
import penstock_ledger.stores
from penstock_ledger import (
    EVERYONE,
    ApiKeyStore,
    BatchFailure,
    CallClaim,
    Database,
    DeadLetter,
    DoorBatchState,
    DoorBatchStore,
    DoorCallStore,
    DoorFiles,
    EndedSessions,
    EqualRequests,
    EqualRequestStore,
    FeedKind,
    FileDetails,
    ItemKey,
    JobStore,
    KeyLimits,
    LaneMoves,
    MadeWith,
    Meta,
    NewApiKey,
    NewCallback,
    NewDoorBatch,
    NewEndpoint,
    NewJob,
    NewProviderBatch,
    OutcomeStore,
    Paid,
    PaidBeside,
    Provenance,
    ProviderBatchStore,
    PushedCall,
    Remainder,
    RemainderStore,
    Result,
    RunStore,
    Saving,
    ScheduleStore,
    Spool,
    StepsTaken,
    StepTaken,
    WebhookStore,
    Whose,
    note_event,
    open_database,
    purge_job,
)
from penstock_ledger.model import JobState, Shard, TakenFiles
from penstock_ledger.reasons import by_hand
from penstock_ledger.schedules.model import (
    CatchUp,
    Decision,
    DriftRule,
    FiringOutcome,
    NewSchedule,
    OnDrift,
)
from penstock_ledger.schedules.noticed import NoticedStore

ME, LEASE_S = "me", 600.0
T = Whose("t")
LIMITS = KeyLimits()


def key(doc: str, job_id: str = "job-a") -> ItemKey:
    return ItemKey(job_id, 1, doc)


def result(doc: str, job_id: str = "job-a", cost: int = 5) -> Result:
    return Result(key(doc, job_id), 200, b"{}", "r", "m", "stop", 10, 20, cost, 100, 1, 1)


def letter(doc: str) -> DeadLetter:
    return DeadLetter(
        key(doc), "http_400", 1, 1, "no", 400, b"{}", None, prompt_tokens=3, cost_microusd=7
    )


def left(doc: str) -> Remainder:
    return Remainder(key(doc), f"at-{doc}", 1, 1, 5, 6, 7, "batch_expired")


def packed(tag: str) -> NewProviderBatch:
    return NewProviderBatch(
        tag, "job-a", 1, "p", "openai", "m", "/v1/x", {}, {"offset": 9}, 3, 90, 100, 11
    )


def new_job(name: str, **more: Any) -> NewJob:
    given: dict[str, Any] = {
        "job_id": name,
        "job_key": name,
        "spec": {"lane": "api", "tenant": "t"},
        "source": {"kind": "file", "uri": "x"},
        "digest": "d1",
        "total": 9,
    }
    return NewJob(**given | more)


def schedule(name: str) -> NewSchedule:
    return NewSchedule(
        f"id-{name}", name, "* * * * *", "UTC", {}, {}, CatchUp.ONCE, overlap=False, next_at=60.0
    )


def furnish(db: Database) -> None:
    """Put one of everything there."""
    jobs, batches, calls = JobStore(db), ProviderBatchStore(db), DoorCallStore(db)
    webhooks, files, schedules = WebhookStore(db), DoorFiles(db), ScheduleStore(db)
    webhooks.add(NewEndpoint("we_1", "t", "http://x", "whsec_0", ["*"]))
    jobs.create(new_job("job-a"))
    shards = (Shard({}, {"offset": 5}), Shard({"offset": 5}, None))
    jobs.create(new_job("job-s", shards=shards))
    jobs.create(new_job("job-o", total=None, source={"kind": "spool"}, feed_kind=FeedKind.SPOOL))
    jobs.create(new_job("job-e", total=1))
    Spool(db).append("job-o", [("s1", b"1")])
    OutcomeStore(db, "api").settle([result("r1")], [letter("l1"), letter("l2")])
    OutcomeStore(db, "api").settle([result("e1", "job-e")], [])
    jobs.set_state("job-e", JobState.COMPLETED, expect=[JobState.RUNNING])
    feed = jobs.lease_feed("job-a", 1, ME, LEASE_S)
    assert feed is not None
    batches.add_of_feed(feed, ME, LEASE_S, [packed("b1")], cursor={"offset": 9}, exhausted=False)
    RemainderStore(db).add([left("d1"), left("d2"), left("d3")])
    batches.add_of_remainders(ME, LEASE_S, [(packed("b2"), [key("d2")])], {"b2": b"ids"})
    schedules.add(schedule("nightly"))
    NoticedStore(db).note("id-nightly", ["a.jsonl"])
    ApiKeyStore(db).create(NewApiKey("k", "t", frozenset(["read"]), None, LIMITS))
    files.begin("file-1", "t", "file-1.jsonl")
    for name, lives_s in (("file-2", None), ("file-3", -1.0)):
        files.begin(name, "t", f"{name}.jsonl")
        files.finish(name, FileDetails("in.jsonl", "batch", 3, "0" * 64, lives_s))
    for name in ("batch_1", "batch_2"):
        DoorBatchStore(db).add(NewDoorBatch(name, "openai", "t", "/v1/x", "file-2", 60.0))
    calls.push("job-o", [PushedCall([("c1", b"{}")], "c1", CallClaim("t", "old", "d", -1.0))])
    webhooks.claim("elsewhere", LEASE_S, most=10, per_endpoint=10)
    db.write(lambda connection: note_event(connection, "t", "job.failed", "job-x"))


Call = Callable[[], Any]
CASES: dict[str, Callable[[Database], Call]] = {}


def case(make: Callable[[Database], Call]) -> Callable[[Database], Call]:
    """For a method that needs more than a line: the function is named as it."""
    store, _, method = make.__name__.partition("__")
    CASES[f"{store}.{method}"] = make
    return make


def leased(db: Database, job_id: str = "job-a") -> Any:
    feed = JobStore(db).lease_feed(job_id, 1, ME, LEASE_S)
    assert feed is not None
    return feed


def batch(db: Database, tag: str) -> Any:
    return next(one for one in ProviderBatchStore(db).of_job("job-a") if one.tag == tag)


def one_due(db: Database) -> Any:
    return WebhookStore(db).claim(ME, LEASE_S, most=1, per_endpoint=1)[0]


CASES |= {
    "JobStore.create": lambda db: (
        lambda: (
            JobStore(db)
            .create(
                new_job("new", taken=TakenFiles("id-nightly", [b"f" * 16])),
                [letter("bad")],
                [b"page"],
            )[0]
            .job_id
        )
    ),
    "JobStore.set_state": lambda db: (
        lambda: JobStore(db).set_state(
            "job-a", JobState.PAUSED, why=by_hand("x"), expect=[JobState.RUNNING]
        )
    ),
    "JobStore.amend": lambda db: lambda: JobStore(db).amend("job-a", {"a": 1}, "d2", expect="d1"),
    "JobStore.close": lambda db: lambda: JobStore(db).close("job-o"),
    "JobStore.replay": lambda db: lambda: JobStore(db).replay("job-a")[1],
    "FeedStore.lease_feed": lambda db: lambda: JobStore(db).lease_feed("job-a", 1, ME, LEASE_S),
    "FeedStore.lease_feeds": lambda db: (
        lambda: JobStore(db).lease_feeds([("job-a", 1), ("job-o", 1)], ME, LEASE_S)
    ),
    "FeedStore.lease_shards": lambda db: (
        lambda: JobStore(db).lease_shards([("job-s", 1, 1), ("job-s", 1, 2)], ME, LEASE_S)
    ),
    "FeedStore.renew_feeds": lambda db: lambda: JobStore(db).renew_feeds(ME, LEASE_S),
    "FeedStore.rewind_feeds": lambda db: lambda: JobStore(db).rewind_feeds("job-a"),
    "Spool.append": lambda db: lambda: Spool(db).append("job-o", [("s1", b"1"), ("s2", b"2")]),
    "Spool.mark_fed": lambda db: lambda: Spool(db).mark_fed("job-o", range(1, 100)),
    "OutcomeStore.settle": lambda db: (
        lambda: OutcomeStore(db, "api").settle(
            [result("r2"), result("r1", cost=9)],
            [letter("d1")],
            earlier={key("r2"): Paid(1, 1, 1, 3)},
            retried=[("try-1", PaidBeside(key("r3"), 1, 2, 3, 4))],
            left=[PaidBeside(key("r4"), 1, 2, 3, 4)],
            savings={key(doc): [Saving("tier:flex", 1, 3, 5)] for doc in ("r1", "r3")},
        )
    ),
    "OutcomeStore.note_cache": lambda db: (
        lambda: OutcomeStore(db, "api").note_cache(
            PaidBeside(key("cachedContents/1"), 0, 2, 0, 4), "made", "prompt_cache"
        )
    ),
    "OutcomeStore.mend_replays": lambda db: lambda: OutcomeStore(db).mend_replays("job-a"),
    "OutcomeStore.mend_retries": lambda db: lambda: OutcomeStore(db).mend_retries("job-a"),
    "ProviderBatchStore.take": lambda db: (
        lambda: [one.tag for one in ProviderBatchStore(db).take(ME, LEASE_S, 9)]
    ),
    "ProviderBatchStore.renew": lambda db: lambda: ProviderBatchStore(db).renew(ME, LEASE_S),
    "ProviderBatchStore.release_all": lambda db: lambda: ProviderBatchStore(db).release_all(ME),
    "ProviderBatchStore.add_of_remainders": lambda db: (
        lambda: ProviderBatchStore(db).add_of_remainders(
            ME, LEASE_S, [(packed("b3"), [key("d1")])], {"b3": b"ids"}
        )
    ),
    "ProviderBatchStore.forget": lambda db: lambda: ProviderBatchStore(db).forget([key("d1")]),
    "ProviderBatchStore.passed_on": lambda db: (
        lambda: ProviderBatchStore(db).passed_on([key("d1"), key("d2")])
    ),
    "ProviderBatchStore.settle": lambda db: (
        lambda: ProviderBatchStore(db, "batch").settle(
            "b2", [result("d4")], [letter("d5")], [left("d2")], [PaidBeside(key("d6"), 0, 1, 2, 3)]
        )
    ),
    "RemainderStore.add": lambda db: lambda: RemainderStore(db).add([left("d1"), left("d7")]),
    "ScheduleStore.add": lambda db: lambda: ScheduleStore(db).add(schedule("weekly")).name,
    "StepsTaken.take": lambda db: (
        lambda: StepsTaken(db).take("job-a", StepTaken(1, 5.0, "deadline", 0.8))
    ),
    "ScheduleStore.pause": lambda db: lambda: ScheduleStore(db).pause("nightly"),
    "ScheduleStore.remove": lambda db: lambda: ScheduleStore(db).remove("nightly"),
    "ScheduleStore.forget_taken": lambda db: (
        lambda: ScheduleStore(db).forget_taken("id-nightly", [b"f" * 16])
    ),
    "NoticedStore.note": lambda db: lambda: NoticedStore(db).note("id-nightly", ["b"]),
    "LaneMoves.move": lambda db: (
        lambda: LaneMoves(db).move("job-a", "api", "batch", "by_hand", "cheaper", {}, now=1.0)
    ),
    "LaneMoves.change_tier": lambda db: (
        lambda: LaneMoves(db).change_tier(
            "job-a", "api", "flex", "cheaper", "half the price", {}, now=1.0
        )
    ),
    "Provenance.note": lambda db: (
        lambda: Provenance(db).note(
            [("job-a", MadeWith(1, "api", "p", "0.1", "", 1.0, 2.0, 0.0, "m"))]
        )
    ),
    "purge_job": lambda db: lambda: purge_job(db, "job-e"),
    "Meta.epoch": lambda db: lambda: Meta(db).epoch() == Meta(db).epoch(),
    "Meta.session_secret": lambda db: lambda: bool(Meta(db).session_secret()),
    "EndedSessions.end": lambda db: (
        lambda: EndedSessions(db).end("key_a", "s", 150, now=100.0, lasts_s=60.0)
    ),
    "ApiKeyStore.create": lambda db: (
        lambda: bool(ApiKeyStore(db).create(NewApiKey("k2", "t", frozenset(), None, LIMITS)))
    ),
    "ApiKeyStore.under_lock": lambda db: (
        lambda: ApiKeyStore(db).under_lock(
            lambda keys: bool(keys.create(NewApiKey("k2", "t", frozenset(), None, LIMITS))), "t"
        )
    ),
    "DoorBatchStore.add": lambda db: (
        lambda: (
            DoorBatchStore(db)
            .add(NewDoorBatch("batch_9", "openai", "t", "/v1/x", "file-2", 60.0))[0]
            .batch_id
        )
    ),
    "DoorBatchStore.lease": lambda db: (
        lambda: DoorBatchStore(db).lease("batch_1", ME, LEASE_S) is not None
    ),
    "DoorCallStore.push": lambda db: (
        lambda: [
            list(rows)
            for rows in DoorCallStore(db).push(
                "job-o",
                [
                    PushedCall([("c2", b"{}")], "c2", CallClaim("t", "k", "d", LEASE_S)),
                    PushedCall([("c3", b"{}")], "c3"),
                    PushedCall([("c4", b"{}")], "c4", CallClaim("t", "k", "d", LEASE_S)),
                ],
            )
        ]
    ),
    "DoorCallStore.forget_expired": lambda db: lambda: DoorCallStore(db).forget_expired(),
    "DoorFiles.begin": lambda db: lambda: DoorFiles(db).begin("file-9", "t", "file-9.jsonl"),
    "DoorFiles.finish": lambda db: (
        lambda: (
            DoorFiles(db).finish("file-1", FileDetails("in.jsonl", "batch", 3, "0" * 64))
            is not None
        )
    ),
    "DoorFiles.delete": lambda db: (
        lambda: DoorFiles(db).delete("file-3", EVERYONE) or DoorFiles(db).delete("file-2", EVERYONE)
    ),
    "DoorFiles.expire": lambda db: lambda: [one.file_id for one in DoorFiles(db).expire(9)],
    "WebhookStore.add": lambda db: (
        lambda: (
            WebhookStore(db).add(NewEndpoint("we_2", "t", "http://y", "whsec_1", ["*"])) is not None
        )
    ),
    "WebhookStore.call_back": lambda db: (
        lambda: WebhookStore(db).call_back(NewCallback("job-e", "t", "http://y", "whsec_1"))
    ),
    "WebhookStore.remove": lambda db: lambda: WebhookStore(db).remove("we_1", T),
    "WebhookStore.rotate": lambda db: (
        lambda: WebhookStore(db).rotate("we_1", T, "whsec_2", overlap_s=60.0)
    ),
    "WebhookStore.disable": lambda db: lambda: WebhookStore(db).disable("we_1", "gone"),
    "WebhookStore.test": lambda db: lambda: WebhookStore(db).test("we_1") is not None,
    "WebhookStore.claim": lambda db: (
        lambda: [one.tries for one in WebhookStore(db).claim(ME, LEASE_S, most=1, per_endpoint=1)]
    ),
}


@case
def FeedStore__release_feed(db: Database) -> Call:
    feed = leased(db)
    return lambda: JobStore(db).release_feed(feed, ME)


@case
def FeedStore__advance_feed(db: Database) -> Call:
    """Of the last shard, which ends the feed as well."""
    first, last = JobStore(db).lease_shards([("job-s", 1, 1), ("job-s", 1, 2)], ME, LEASE_S)
    JobStore(db).advance_feed(first, ME, cursor={"offset": 5}, exhausted=True)
    return lambda: JobStore(db).advance_feed(last, ME, cursor={"offset": 9}, exhausted=True)


@case
def ProviderBatchStore__add_of_feed(db: Database) -> Call:
    feed = leased(db, "job-o")
    return lambda: ProviderBatchStore(db).add_of_feed(
        feed, ME, LEASE_S, [packed("b4")], cursor={"offset": 9}, exhausted=True, ids={"b4": b"x"}
    )


@case
def EqualRequestStore__let_go(db: Database) -> Call:
    feed = leased(db, "job-o")
    waits = left("d8")._replace(key=key("d8", "job-o"), same_as="d7")
    equal = EqualRequests("job-o", 1, {"digest": "d7"}, [waits])
    ProviderBatchStore(db).add_of_feed(
        feed, ME, LEASE_S, [], cursor={"offset": 9}, exhausted=True, equal=equal
    )
    assert EqualRequestStore(db).waiting([waits.key]) == {waits.key}
    return lambda: EqualRequestStore(db).let_go([waits.key])


@case
def ProviderBatchStore__add_of_spool(db: Database) -> Call:
    feed, rows = leased(db, "job-o"), Spool(db).take("job-o", 9)
    waiting = [left(row.doc_id)._replace(key=key(row.doc_id, "job-o")) for row in rows]
    return lambda: ProviderBatchStore(db).add_of_spool(
        feed, ME, waiting, [row.seq for row in rows], exhausted=False
    )


@case
def ProviderBatchStore__step(db: Database) -> Call:
    one = batch(db, "b1")
    return lambda: ProviderBatchStore(db).step(one, ME, state="uploaded", file_id="f")


@case
def ProviderBatchStore__collected(db: Database) -> Call:
    """With answers that were paid for and never came: the account grows by them once."""
    one, why = batch(db, "b1"), BatchFailure("answers_missing")
    return lambda: ProviderBatchStore(db, "batch").collected(one, ME, why, 3, 33)


@case
def ProviderBatchStore__end(db: Database) -> Call:
    one = batch(db, "b2")
    return lambda: ProviderBatchStore(db).end(one, ME, BatchFailure("batch_expired"))


@case
def ProviderBatchStore__begin_create(db: Database) -> Call:
    one = batch(db, "b1")
    return lambda: ProviderBatchStore(db).begin_create(one, ME, 1_000)


@case
def ProviderBatchStore__replace(db: Database) -> Call:
    one = batch(db, "b2")
    return lambda: ProviderBatchStore(db).replace(one, ME, "b5", "refused") is not None


@case
def ProviderBatchStore__hand_over(db: Database) -> Call:
    one = batch(db, "b2")
    return lambda: ProviderBatchStore(db).hand_over(one)


@case
def ScheduleStore__resume(db: Database) -> Call:
    ScheduleStore(db).pause("nightly")
    return lambda: ScheduleStore(db).resume("nightly", 120.0)


@case
def ScheduleStore__hold(db: Database) -> Call:
    one = ScheduleStore(db).get("nightly")
    return lambda: ScheduleStore(db).hold(one, ME, LEASE_S)


@case
def ScheduleStore__release(db: Database) -> Call:
    ScheduleStore(db).hold(ScheduleStore(db).get("nightly"), ME, LEASE_S)
    return lambda: ScheduleStore(db).release(ME)


@case
def ScheduleStore__wait(db: Database) -> Call:
    one = ScheduleStore(db).get("nightly")
    ScheduleStore(db).hold(one, ME, LEASE_S)
    return lambda: ScheduleStore(db).wait(one, ME, "away", retry_at=90.0, tried=True)


@case
def ScheduleStore__decide(db: Database) -> Call:
    one = ScheduleStore(db).get("nightly")
    made = Decision(60.0, FiringOutcome.STARTED, 120.0, job_id="job-a", taken=b"g" * 16)
    return lambda: ScheduleStore(db).decide(one, made)


@case
def RunStore__write(db: Database) -> Call:
    """A run that has moved: an event for webhooks, and its schedule pauses."""
    rule = DriftRule(OnDrift.PAUSE)
    schedules = ScheduleStore(db)
    schedules.add(replace(schedule("labels"), drift=rule))
    started = Decision(60.0, FiringOutcome.STARTED, 120.0, job_id="job-a")
    schedules.decide(schedules.get("labels"), started)
    JobStore(db).set_state("job-a", JobState.COMPLETED, expect=list(JobState))
    run = RunStore(db).next_to_compare()
    assert run is not None
    return lambda: RunStore(db).write(run, {"moved": []}, moved=True, pauses=True)


@case
def NoticedStore__forget(db: Database) -> Call:
    waiting = NoticedStore(db).waiting("id-nightly", 9)
    return lambda: NoticedStore(db).forget("id-nightly", waiting)


@case
def LaneMoves__note_left(db: Database) -> Call:
    made = LaneMoves(db).move("job-a", None, "batch", "chosen", "why", {}, now=1.0)
    assert made is not None
    return lambda: LaneMoves(db).note_left(made, 2.0)


@case
def ApiKeyStore__revoke(db: Database) -> Call:
    one = ApiKeyStore(db).list(["t"])[0]
    return lambda: ApiKeyStore(db).revoke(one.key_id)


@case
def ApiKeyStore__note_used(db: Database) -> Call:
    one = ApiKeyStore(db).list(["t"])[0]
    return lambda: ApiKeyStore(db).note_used(one.key_id)


@case
def DoorBatchStore__cancel(db: Database) -> Call:
    def asked() -> str:
        found = DoorBatchStore(db).cancel("batch_1")
        assert found is not None
        return found.state

    return asked


@case
def DoorBatchStore__note_counts(db: Database) -> Call:
    one = DoorBatchStore(db).get("batch_1")
    assert one is not None
    return lambda: DoorBatchStore(db).note_counts(one, {"total": 3})


@case
def DoorBatchStore__remove(db: Database) -> Call:
    held = DoorBatchStore(db).lease("batch_2", ME, LEASE_S)
    assert held is not None
    DoorBatchStore(db).move(held, DoorBatchState.FAILED)
    return lambda: DoorBatchStore(db).remove("batch_2")


@case
def DoorBatchStore__renew(db: Database) -> Call:
    held = DoorBatchStore(db).lease("batch_1", ME, LEASE_S)
    assert held is not None
    return lambda: DoorBatchStore(db).renew(held, LEASE_S)


@case
def DoorBatchStore__release(db: Database) -> Call:
    held = DoorBatchStore(db).lease("batch_1", ME, LEASE_S)
    assert held is not None
    return lambda: DoorBatchStore(db).release(held)


@case
def DoorBatchStore__move(db: Database) -> Call:
    """Into its end, of which webhooks tell once."""
    held = DoorBatchStore(db).lease("batch_1", ME, LEASE_S)
    assert held is not None
    return lambda: DoorBatchStore(db).move(held, DoorBatchState.FAILED) is not None


@case
def DoorFiles__forget(db: Database) -> Call:
    DoorFiles(db).expire(9)
    return lambda: DoorFiles(db).forget(["file-3"])


@case
def WebhookStore__enable(db: Database) -> Call:
    WebhookStore(db).disable("we_1", "gone")
    return lambda: WebhookStore(db).enable("we_1", T)


@case
def WebhookStore__again(db: Database) -> Call:
    due = one_due(db)
    WebhookStore(db).delivered(due.event_id, due.endpoint_id, ME)
    return lambda: WebhookStore(db).again(due.event_id, due.endpoint_id)


@case
def WebhookStore__delivered(db: Database) -> Call:
    due = one_due(db)
    return lambda: WebhookStore(db).delivered(due.event_id, due.endpoint_id, ME)


@case
def WebhookStore__failed(db: Database) -> Call:
    due = one_due(db)
    return lambda: WebhookStore(db).failed(due.event_id, due.endpoint_id, ME, "500", 60.0)


@case
def WebhookStore__forget_before(db: Database) -> Call:
    due = one_due(db)
    WebhookStore(db).delivered(due.event_id, due.endpoint_id, ME)
    return lambda: WebhookStore(db).forget_before(2e9)


@contextmanager
def opened(url: str) -> Iterator[Database]:
    db = open_database(url)
    yield db
    db.close()


def stores() -> dict[str, object]:
    """The classes that keep a database, and functions that take one."""
    found: dict[str, object] = {}
    for package in (penstock_ledger.stores, penstock_ledger.door_stores, penstock_ledger.schedules):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for name, thing in vars(import_module(module.name)).items():
                if getattr(thing, "__module__", None) == module.name and not name.startswith("_"):
                    found[name] = thing
    return found


# A transaction that commits, and those of one store in another's
WRITES = re.compile(r"\b(?:_?db|database)\.write\(|\)\.advance_feed\(|\bstore\.settle\(")


def written_by(cls: type) -> set[str]:
    """Public methods of a store that write, by themselves or through others of theirs."""
    sources = {
        name: inspect.getsource(method)
        for name, method in vars(cls).items()
        if inspect.isfunction(method) and not name.startswith("__")
    }
    found = {name for name, source in sources.items() if WRITES.search(source)}
    while more := {
        name
        for name, source in sources.items()
        if name not in found and any(f"self.{one}(" in source for one in found)
    }:
        found |= more
    return {name for name in found if not name.startswith("_")}


def writing_methods() -> set[str]:
    found = set[str]()
    for name, thing in stores().items():
        if inspect.isclass(thing):
            found |= {f"{name}.{method}" for method in written_by(thing)}
        elif inspect.isfunction(thing) and WRITES.search(inspect.getsource(thing)):
            found.add(name)
    return found
