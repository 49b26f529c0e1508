"""A commit that happened and whose answer was lost, at every method of every SQL store: the caller
does it again, and everything is as after one plain call.

What has no case here fails the test: methods are found by looking at the stores.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from lost_replies import LostReplies, everything
from servers import Postgres
from sqlalchemy.exc import DBAPIError, IntegrityError
from store_cases import CASES, Call, furnish, key, opened, writing_methods

from penstock_ledger import (
    DatabaseUnavailable,
    NothingToReplay,
    ScheduleExists,
    ScheduleNotFound,
)
from penstock_ledger.schedules.noticed import Noted

# What the second call answers, where that is not what the first would have said, and who takes it
# for what it is.
SAYS_IT_IS_DONE: dict[str, object] = {
    # the operation looks at the state that it has then; the control loop looks at live jobs again
    "JobStore.set_state": False,
    # the digest is another: the operation says that the job has changed meanwhile, and the same
    # limit given to the job as it is now changes nothing
    "JobStore.amend": False,
    # of the dead letters none is visible any more: the replay is under way
    "JobStore.replay": NothingToReplay,
    # none is new; pushes ask for conflicts, not for the number
    "Spool.append": 0,
    # the losers are our own rows: they are done in Redis either way, and no second answer is noted
    "OutcomeStore.settle": {key("r1"), key("r2"), key("d1")},
    "ProviderBatchStore.settle": {key("d4"), key("d5")},
    # `take` finds them, by the name of the owner; the next round packs behind the cursor that the
    # feed has then: test_commits_of_an_engine_that_are_not_answered
    "ProviderBatchStore.add_of_remainders": False,
    "ProviderBatchStore.add_of_feed": IntegrityError,
    "ProviderBatchStore.collected": False,
    "ProviderBatchStore.replace": False,
    # the schedule is there: `schedule list` shows it
    "ScheduleStore.add": ScheduleExists,
    "ScheduleStore.pause": False,
    "ScheduleStore.resume": False,
    "ScheduleStore.remove": ScheduleNotFound,
    # decided: the next round goes on with the time after it
    "ScheduleStore.decide": False,
    # what is written is read: by the report, the list and the next step of the job
    "RunStore.write": False,
    "StepsTaken.take": False,
    "NoticedStore.note": Noted([], ["b"], []),
    # the next round, or `penstock move`, sees the lane that it has
    "LaneMoves.move": None,
    "LaneMoves.change_tier": None,
    "ApiKeyStore.revoke": False,
    # its lease is over in a while, and `due` has it again
    "DoorBatchStore.lease": False,
    "DoorBatchStore.remove": False,
    # the step after it begins with the state that it has
    "DoorBatchStore.move": False,
    "DoorCallStore.forget_expired": 0,
    # an upload that fails is begun anew by another name, and the row is cleaned up
    "DoorFiles.begin": IntegrityError,
    "DoorFiles.finish": False,
    # their bytes go with those of `deleted_before`
    "DoorFiles.expire": [],
    "WebhookStore.add": IntegrityError,
    "WebhookStore.call_back": False,
    "WebhookStore.remove": False,
    # leased to this process: tried again when the lease is over, with the same event id
    "WebhookStore.claim": [],
    "WebhookStore.failed": False,
    "WebhookStore.forget_before": 0,
}
# Done twice by who asks twice, for what they make has a new name each time: a key that none has,
# a test event. Nothing is paid for either.
TWICE = {
    "ApiKeyStore.create": "api_keys",
    "ApiKeyStore.under_lock": "api_keys",
    "WebhookStore.test": "webhook_deliveries",
}
# Whose caller does not hear of it where a connection is lost: it would ask by another name.
NAMED = ("DoorBatchStore.add", "DoorCallStore.push", "JobStore.create")
# What money hangs on, and one of each kind of statement beside them: the others are in
# `make test-all` on PostgreSQL, too.
ALWAYS_ON_BOTH = (
    *NAMED,
    "FeedStore.advance_feed",
    "OutcomeStore.settle",
    "ProviderBatchStore.collected",
    "ProviderBatchStore.take",
)


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("furnished") / "ledger.db"
    with opened(f"sqlite:///{file}") as db:
        db.migrate()
        furnish(db)
    return file


@pytest.fixture(scope="module")
def furnished_postgres(postgres_server: Postgres) -> str:
    url = postgres_server.new_database()
    with opened(url) as db:
        db.migrate()
        furnish(db)
    return url.partition("?")[0].rpartition("/")[2]


def answer_of(call: Call) -> object:
    """What a call says, the class of an error included; a database that is away is no answer."""
    try:
        return call()
    except (IntegrityError, NothingToReplay, ScheduleExists, ScheduleNotFound) as error:
        return type(error)


def called_again(call: Call) -> object:
    """Do what callers do: again, where the database did not answer."""
    with pytest.raises((DatabaseUnavailable, DBAPIError)):
        answer_of(call)
    return answer_of(call)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "sqlite") for name in sorted(CASES)),
        *((name, "postgresql") for name in ALWAYS_ON_BOTH),
        *(
            pytest.param(name, "postgresql", marks=pytest.mark.whole)
            for name in sorted(CASES.keys() - set(ALWAYS_ON_BOTH))
        ),
    ],
)
def test_a_lost_answer_changes_nothing(
    name: str, kind: str, furnished: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Committed and not answered, then called again: the same rows and sums as after one call that
    was answered, and an answer that says so."""
    shutil.copy(furnished, tmp_path / "plain.db")
    with opened(f"sqlite:///{tmp_path}/plain.db") as db:
        plain_answer = answer_of(CASES[name](db))
        plain = everything(db)
    if kind == "sqlite":
        shutil.copy(furnished, tmp_path / "lost.db")
        url = f"sqlite:///{tmp_path}/lost.db"
    else:
        template = request.getfixturevalue("furnished_postgres")
        server: Postgres = request.getfixturevalue("postgres_server")
        url = server.new_database(f"template {template}")
    with opened(url) as db:
        call = CASES[name](db)
        with LostReplies(db).losing() as replies:
            is_repeated = kind == "postgresql" and name in NAMED
            answer = answer_of(call) if is_repeated else called_again(call)
        assert replies.commits >= 1, "it commits nothing: no case of this test"
        found = everything(db)
    if name in TWICE:
        assert len(found[TWICE[name]]) == len(plain[TWICE[name]]) + 1
        found[TWICE[name]] = plain[TWICE[name]]
    assert found == plain
    assert answer == SAYS_IT_IS_DONE.get(name, plain_answer)


def test_every_method_that_writes_has_a_case() -> None:
    """A new one fails here until it says what becomes of it when its answer is lost."""
    found = writing_methods()
    assert len(found) > 60, "the stores were not found"
    assert found == CASES.keys()
    assert CASES.keys() >= SAYS_IT_IS_DONE.keys() | TWICE.keys() | set(ALWAYS_ON_BOTH)
