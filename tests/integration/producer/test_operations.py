"""Each operation on a job through each door, in each state of a job: all doors write the same into
SQL and Redis, and refuse the same.

A Python service needs no Redis: of its door only SQL is compared, and control tells workers. The
Celery tasks push documents and have none of these operations.
"""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from http.client import HTTPResponse
from itertools import count
from typing import Any, Final

import pytest
from doors import door, door_settings
from jobs_api import Client, settle
from servers import RedisServer
from typer.testing import CliRunner

from penstock_cli.errors import UsageProblem
from penstock_cli.main import command_line
from penstock_gateway.errors import refused_for
from penstock_ledger import (
    BY_HAND,
    JobNotFound,
    JobStore,
    LaneMoves,
    NewJob,
    OutcomeStore,
    RedisLedger,
    open_database,
)
from penstock_ledger.keys import job_state
from penstock_ledger.model import Job, JobState
from penstock_ledger.reasons import By, Code, Reason, StopCode, by_hand
from penstock_producer import JobSpec, PenstockError, Producer, ProducerSettings
from penstock_producer.operations import LIMITS
from penstock_producer.prices import spent_budget

DONE, SAME = "done", "same"  # it was so already
STATE = "job_state"  # the code of what does not fit the state of a job

RUNNING = ("running", "moved")
PAUSED = ("by_person", "by_stop_loss", "by_budget", "for_a_while")
GOES_ON = (*RUNNING, *PAUSED)
STATES = (*GOES_ON, "cancelling", "cancelled", "completed", "failed")
STOPPED: Final = Reason(
    StopCode.DEAD,
    By.STOP_LOSS,
    {"generation": 1, "failing": 0.5, "usd_per_doc": 0.0, "bad": 50, "of": 100, "bound": 50.0},
)


def table(otherwise: str, **by_kind: tuple[str, ...]) -> Mapping[str, str]:
    """What comes of an operation in each state: the kinds that are named, and in all other states
    the last word."""
    return {
        state: next((kind for kind, states in by_kind.items() if state in states), otherwise)
        for state in STATES
    }


EXPECTED: Final[Mapping[str, Mapping[str, str]]] = {
    "pause": table(STATE, done=RUNNING, same=PAUSED),
    "resume": table(STATE, done=PAUSED, same=RUNNING),
    "cancel": table(STATE, done=GOES_ON, same=("cancelling", "cancelled")),
    "move": table(STATE, done=("running",)),  # the other one is in that lane already
    "move_nowhere": table("invalid_value"),
    "limit": table(STATE, done=(*GOES_ON, "cancelling")),
    "lift": table(STATE, done=(*GOES_ON, "cancelling")),
    "more_money": table(STATE, done=GOES_ON),
    "too_little": table(STATE, invalid_value=(*GOES_ON, "cancelling")),
    "replay": table("not_replayable", done=(*GOES_ON, "completed")),
    "replay_nothing": table("not_replayable", nothing_to_replay=(*GOES_ON, "completed")),
    "replay_odd": table("invalid_value"),
    "purge": table(STATE, done=("cancelled", "completed", "failed")),
}
FAR: Final = 4e9  # Unix seconds at which a pause ends by itself
TWO_VALUED = ("pause", "resume", "cancel")  # Python and the page say only whether it was done


@dataclass
class House:
    """One database, one Redis and one HTTP door for the whole table."""

    url: str
    database_url: str
    redis: RedisServer

    def __post_init__(self) -> None:
        self.database = open_database(self.database_url)
        self.jobs = JobStore(self.database)
        self.hot = RedisLedger(self.redis.client(), "epoch")
        settings = ProducerSettings(database_url=self.database_url)
        self.producer = Producer(settings, database=self.database)
        self.api = Client(self.url)
        self.page = Page(self.url)
        self.shell = CliRunner(
            env={"PENSTOCK_DATABASE_URL": self.database_url, "PENSTOCK_REDIS_URL": self.redis.url}
        )
        self.command = command_line()
        self._number = count()

    def job(self, state: str) -> str:
        """Make a job in this state, with a result and two dead letters; SQL and Redis agree."""
        job_id = f"job_{next(self._number)}"
        spec = JobSpec(model="m", prompt="{text}", budget_usd=5.0, deadline_s=7200.0)
        source = {"kind": "file", "uri": "in.jsonl"}
        self.jobs.create(NewJob(job_id, job_id, spec.to_json(), source, job_id, 3))
        settle(self.database, job_id, 1, dead=2)
        self._lead_to(job_id, state)
        job = self.jobs.get(job_id)
        self.hot.set_job_state(job_id, job.state)
        self.hot.set_job_lane(job)
        return job_id

    def _lead_to(self, job_id: str, state: str) -> None:
        def go(to: JobState, **why: Any) -> None:
            assert self.jobs.set_state(job_id, to, expect=list(JobState), **why)

        if state == "moved":
            moves = LaneMoves(self.database)
            assert moves.move(job_id, "api", "batch", BY_HAND, "", {}, now=time.time())
        elif state == "by_person":
            go(JobState.PAUSED, why=by_hand("a look at it"))
        elif state == "by_stop_loss":
            go(JobState.PAUSED, why=STOPPED)
        elif state == "by_budget":
            spent = spent_budget(budget_usd=5, spent_usd=5, left=1, mean_usd=1)
            go(JobState.PAUSED, why=spent)
        elif state == "for_a_while":
            asked = {"wait_s": 9e3, "max_wait_s": 900.0}
            why = Reason("rate_limited", By.PROVIDER, asked)
            go(JobState.PAUSED, why=why, resume_at=FAR)
        elif state == "failed":
            go(JobState.FAILED, why=Reason("source_changed", By.SOURCE, {"detail": "it did"}))
        elif state != "running":
            go(JobState(state))

    def stands(self, job_id: str) -> tuple[Any, ...]:
        """What SQL holds of a job, without the words of who did it."""
        try:
            job = self.jobs.get(job_id)
        except JobNotFound:
            return ()
        limits = {name: job.spec.get(name) for name in LIMITS}
        why = job.why and (job.why.code, job.why.by)
        feeds = [(feed.kind, feed.overrides) for feed in self.jobs.feeds(job_id)]
        return (
            (job.state, job.resume_at, job.finished_at is None, why, job.accepted),
            (job.generation, feeds, OutcomeStore(self.database).counts(job_id).dead),
            (job.lane, job.moves, limits),
        )

    def seen_by_workers(self, job_id: str) -> str:
        """Whether Redis holds what SQL does."""
        try:
            job: Job = self.jobs.get(job_id)
        except JobNotFound:
            found = self.redis.client().get(job_state(job_id))
            return "purged" if found == b"purged" else f"not {found!r}"
        return "current" if self.hot.see([job])[0].is_current else "stale"

    def close(self) -> None:
        self.producer.close()
        self.database.close()


class _Stays(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


class Page:
    """A browser's forms, without the browser."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opener = urllib.request.build_opener(_Stays)
        self._headers = {"origin": url}
        self._token = ""

    def post(self, path: str, **fields: str) -> tuple[int, str]:
        """Return the status, and where the browser is led."""
        if not self._token:
            answer = self._opener.open(f"{self._url}{path}", timeout=20)
            cookie, text = answer.headers["set-cookie"], answer.read().decode()
            found = re.search(r'name="token" value="(\w+)"', text)
            assert found is not None
            self._token, self._headers["cookie"] = found[1], cookie.partition(";")[0]
        data = urllib.parse.urlencode({"token": self._token, **fields}).encode()
        request = urllib.request.Request(f"{self._url}{path}", data, self._headers)
        try:
            answered: HTTPResponse | urllib.error.HTTPError = self._opener.open(request, timeout=20)
        except urllib.error.HTTPError as error:
            answered = error
        with answered:
            return answered.status or 0, answered.headers.get("location", "")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, _shared_redis: RedisServer) -> Iterator[House]:
    _shared_redis.flush()
    settings = door_settings(tmp_path_factory.mktemp("operations"), _shared_redis.url)
    with door(settings) as url:
        made = House(url, settings.database_url, _shared_redis)
        yield made
        made.close()


# -- the doors: what each says of an operation on a job ------------------------------------------

LIMIT, LIFT = {"deadline_s": 60.0, "stop_at_dead": "80%"}, {"deadline_s": None}
MORE, LITTLE = 50.0, 0.000_001
BRIEFLY = "Briefly: {prompt}"
SET = {"set": {"model": "n"}, "prompt": BRIEFLY}
ODD = {"prompt": "{text}"}


def through_python(house: House, operation: str, job: str) -> str:
    """A service with the database at hand."""
    do, spec = house.producer, house.jobs.get(job).spec
    given = {name: spec.get(name) for name in ("budget_usd", "deadline_s")}

    def limit(other: Mapping[str, Any]) -> bool:
        stops = {name: value for name, value in other.items() if name not in given}
        now = given | {name: value for name, value in other.items() if name in given}
        return do.limit(job, **now, stops=stops)

    def more_money() -> bool:
        limit({"budget_usd": MORE})
        return do.resume(job)

    ways: Mapping[str, Callable[[], object]] = {
        "pause": lambda: do.pause(job),
        "resume": lambda: do.resume(job),
        "cancel": lambda: do.cancel(job),
        "limit": lambda: limit(LIMIT),
        "lift": lambda: limit(LIFT),
        "more_money": more_money,
        "too_little": lambda: limit({"budget_usd": LITTLE}),
        "replay": lambda: do.replay(job, overrides=SET),
        "replay_nothing": lambda: do.replay(job, reason="timeout"),
        "replay_odd": lambda: do.replay(job, overrides=ODD),
    }
    try:
        return DONE if ways[operation]() else SAME
    except PenstockError as error:
        return code_of(error)


def through_http(house: House, operation: str, job: str) -> str:
    """A caller of the jobs API."""
    place, ask, post = f"/v1/jobs/{job}", house.api.ask, house.api.post

    def more_money() -> Any:
        changed = ask("PATCH", place, {"budget_usd": MORE})
        return post(f"{place}/resume") if changed.status == 200 else changed

    ways: Mapping[str, Callable[[], Any]] = {
        **{name: partial(post, f"{place}/{name}") for name in TWO_VALUED},
        "move": lambda: post(f"{place}/move", {"lane": "batch"}),
        "move_nowhere": lambda: post(f"{place}/move", {"lane": "nowhere"}),
        "limit": lambda: ask("PATCH", place, LIMIT),
        "lift": lambda: ask("PATCH", place, LIFT),
        "more_money": more_money,
        "too_little": lambda: ask("PATCH", place, {"budget_usd": LITTLE}),
        "replay": lambda: post(f"{place}/replay", {"overrides": SET}),
        "replay_nothing": lambda: post(f"{place}/replay", {"reason": "timeout"}),
        "replay_odd": lambda: post(f"{place}/replay", {"overrides": ODD}),
        "purge": lambda: ask("DELETE", place),
    }
    answer = ways[operation]()
    return DONE if answer.status == 200 else str(answer.json["code"])


def through_page(house: House, operation: str, job: str) -> str:
    """A person who fills in the dashboard's forms."""
    place, post = f"/ui/jobs/{job}", house.page.post
    letters = {"reason": "http_400", "alike": "refused"}  # a group of the page of dead letters

    def more_money() -> tuple[int, str]:
        changed = post(f"{place}/limit", budget=str(MORE))
        return post(f"{place}/resume") if changed[0] == 303 else changed

    ways: Mapping[str, Callable[[], tuple[int, str]]] = {
        **{name: partial(post, f"{place}/{name}") for name in TWO_VALUED},
        "limit": lambda: post(f"{place}/limit", budget="5", deadline="60s", stop_at_dead="80%"),
        "lift": lambda: post(f"{place}/limit", budget="5", deadline=""),
        "more_money": more_money,
        "too_little": lambda: post(f"{place}/limit", budget=f"{LITTLE:.6f}"),
        "replay": lambda: post(f"{place}/replay", **letters, model="n", prompt=BRIEFLY),
        "replay_nothing": lambda: post(f"{place}/replay", reason="timeout", alike=""),
        "replay_odd": lambda: post(f"{place}/replay", **letters, prompt=ODD["prompt"]),
    }
    status, led_to = ways[operation]()
    if status == 303:
        return SAME if led_to.endswith("done=unchanged") else DONE
    return str(status)  # with the sentence, which people read


def through_shell(house: House, operation: str, job: str) -> str:
    """An operator at a terminal of the fleet."""
    ways = {
        **{name: [name, job] for name in TWO_VALUED},
        "move": ["move", job, "batch"],
        "move_nowhere": ["move", job, "nowhere"],
        "more_money": ["resume", job, "--budget-usd", str(MORE)],
        "too_little": ["resume", job, "--budget-usd", f"{LITTLE:.6f}"],
        "replay": ["dlq", "replay", job, "--set", "model=n", "--edit-prompt", BRIEFLY],
        "replay_nothing": ["dlq", "replay", job, "--reason", "timeout"],
        "replay_odd": ["dlq", "replay", job, "--edit-prompt", ODD["prompt"]],
        "purge": ["purge", job, "--yes"],
    }
    answer = house.shell.invoke(house.command, ways[operation])
    if answer.exit_code == 0:
        return DONE
    assert isinstance(answer.exception, PenstockError), answer.exception
    return code_of(answer.exception)


def code_of(error: PenstockError) -> str:
    """Return the code that HTTP gives this error."""
    if isinstance(error, UsageProblem):  # what was typed, in its flags
        return "invalid_value"
    return str(refused_for(error).code)


DOORS: Final[Mapping[str, Callable[[House, str, str], str]]] = {
    "python": through_python,
    "http": through_http,
    "page": through_page,
    "shell": through_shell,
}
LACKS: Final = {  # what a door does not have
    "python": {"move", "move_nowhere", "purge"},
    "page": {"move", "move_nowhere", "purge"},
    "shell": {"limit", "lift"},
}


@pytest.mark.parametrize("operation", EXPECTED)
def test_every_door_does_the_same(house: House, operation: str) -> None:
    """In every state of a job all doors leave the same rows, tell workers the same, and refuse with
    the same code. That a paused job goes on is for control to tell them."""
    for state, kind in EXPECTED[operation].items():
        stood: dict[str, tuple[Any, ...]] = {}
        for name, through in DOORS.items():
            if operation in LACKS.get(name, ()):
                continue
            job = house.job(state)
            before = house.stands(job)
            said = through(house, operation, job)
            assert said in _may_say(name, operation, kind), (state, name, said)
            stood[name] = house.stands(job)
            if kind not in (DONE, SAME) and operation != "more_money":
                assert stood[name] == before, (state, name)
            if name != "python":
                told = "current" if stood[name] else "purged"
                resumed = (JobState.PAUSED, JobState.RUNNING)
                if told == "current" and (before[0][0], stood[name][0][0]) == resumed:
                    told = "stale"
                assert house.seen_by_workers(job) == told, (state, name)
        assert len(stood) > 1
        first = next(iter(stood.values()))
        assert all(one == first for one in stood.values()), (state, stood)


def _may_say(name: str, operation: str, kind: str) -> tuple[str, ...]:
    if name in ("python", "page") and operation in TWO_VALUED:
        return (DONE,) if kind == DONE else (SAME,)
    kind = DONE if kind == SAME else kind
    if name == "page" and kind != DONE:
        kind = "400" if kind == "invalid_value" else "409"
    if operation == "more_money" and name in ("python", "page"):
        return (kind, SAME)  # as of ``resume``, which is its second half
    return (kind,)


WORDS: Final[Mapping[str, Callable[[House, str, str], object]]] = {
    "python": lambda house, job, words: house.producer.pause(job, reason=words),
    "http": lambda house, job, words: house.api.post(f"/v1/jobs/{job}/pause", {"reason": words}),
    "shell": lambda house, job, words: house.shell.invoke(
        house.command, ["pause", job, "--reason", words]
    ),
}
"""The doors through which a person's words come; the others write words of their own."""


def test_a_persons_words_steer_nothing(house: House) -> None:
    """Every code that a machine gives, typed as the words of a pause, stays a note: no budget, no
    lane, no disk and no provider is read out of it."""
    for code in (*Code, *StopCode, "rate_limited", "daily_limit", "slow_down", "out_of_credit"):
        for name, pause in WORDS.items():
            job, words = house.job("running"), f"{code}: 5.00 USD of 5 are spent"
            pause(house, job, words)
            found = house.jobs.get(job)
            assert found.pause == by_hand(words), (code, name)
            shown = house.api.ask("GET", f"/v1/jobs/{job}").json["pause"]
            assert (shown["code"], shown["by"]) == ("by_hand", "person"), (code, name)
            assert (shown["message"], shown["advice"]) == (words, []), (code, name)
            house.api.post(f"/v1/jobs/{job}/cancel", {"reason": words})
            assert house.jobs.get(job).why == by_hand(words), (code, name)
