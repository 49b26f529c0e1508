"""The real Flower beside a real worker, over HTTP: workers, tasks and queues, logins, and no secret
anywhere."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from celery_worker import Fleet, fleet_on, until
from forked import Penstock, run
from servers import RedisServer, free_port
from sqlalchemy import update

from penstock_ledger import keys
from penstock_ledger.sql.tables import schedules
from penstock_producer import Producer

LOGIN = "me:open-sesame"
REDIS_PASSWORD = "r3d1s-s3cret"
WORKER = "w0@test"


@dataclass
class Flower:
    """A Flower process and how to ask it."""

    process: subprocess.Popen[bytes]
    log: Path
    base: str

    @classmethod
    def start(cls, folder: Path, redis_url: str, *flags: str, **variables: str) -> Flower:
        port, log = free_port(), folder / f"flower-{free_port()}.log"
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PENSTOCK_", "FLOWER_"))
        }
        with log.open("wb") as out:
            process = Penstock(
                ["flower", "--port", str(port), *flags],
                env=kept | {"PENSTOCK_REDIS_URL": redis_url} | variables,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=folder,
            )
        flower = cls(process, log, f"http://127.0.0.1:{port}")
        until(lambda: flower.is_up(), 30, flower.text)
        return flower

    def is_up(self) -> bool:
        assert self.process.poll() is None, self.text()
        try:
            return "serves" in self.text() and self.get("/healthcheck")[0] in (200, 404)
        except urllib.error.URLError:
            return False

    def get(self, path: str, login: str | None = LOGIN, method: str = "GET") -> tuple[int, str]:
        headers = (
            {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()} if login else {}
        )
        request = urllib.request.Request(self.base + path, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def read(self, path: str) -> Any:
        status, text = self.get(path)
        assert status == 200, text
        return json.loads(text)

    def tasks(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self.read("/ops/api/tasks?limit=10000")
        return found

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(20)


@dataclass
class Watched:
    """A fleet whose Redis has a password, and the Flower that watches it."""

    fleet: Fleet
    flower: Flower
    url: str


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("flower")
    server = LockedRedis.start(folder / "redis", settings=("--requirepass", REDIS_PASSWORD))
    with fleet_on(server, folder) as fleet:
        fleet.start(concurrency=16)
        login = {"PENSTOCK_FLOWER__AUTH": LOGIN, "PENSTOCK_FLOWER__URL_PREFIX": "ops"}
        flower = Flower.start(folder, server.url, **login)
        try:
            fleet.publish(1, first=9_000)
            until(lambda: hears(fleet, flower), 30, flower.text)
            yield Watched(fleet, flower, server.url)
        finally:
            status = flower.end()
            server.stop()
    assert status == 0, flower.text()


class LockedRedis(RedisServer):
    """A Redis that wants a password, as in production."""

    @property
    def url(self) -> str:
        return f"redis://:{REDIS_PASSWORD}@127.0.0.1:{self.port}/0"

    def client(self, **options: Any) -> Any:
        return super().client(password=REDIS_PASSWORD, **options)


def hears(fleet: Fleet, flower: Flower) -> bool:
    """Flower has switched the worker's task events on."""
    fleet.publish(1, first=9_001 + len(fleet.runs()))
    time.sleep(0.3)
    return bool(flower.tasks())


def held_by(flower: Flower, worker: str) -> list[dict[str, Any]]:
    info = flower.read(f"/ops/api/workers?refresh=1&workername={worker}")[worker]
    return [*info["active"], *info["reserved"]]


def states(tasks: dict[str, dict[str, Any]], first: int, number: int) -> Counter[str]:
    names = {f"job:d{n}" for n in range(first, first + number)}
    return Counter(task["state"] for name, task in tasks.items() if name in names)


def shown(flower: Flower, *wanted: tuple[int, dict[str, int]]) -> Callable[[], bool]:
    def all_there() -> bool:
        tasks = flower.tasks()
        return all(states(tasks, first, sum(counts.values())) == counts for first, counts in wanted)

    return all_there


def test_tasks_are_shown_in_their_states(watched: Watched) -> None:
    """Succeeded, failed with the reason, waiting for a retry: each item by job and document, none
    by its text."""
    fleet, flower = watched.fleet, watched.flower
    fleet.publish(40, text="a patient's letter")
    fleet.publish(5, first=100, outcome="failed", text="a patient's letter")
    fleet.publish(5, first=200, outcome="retried")
    until(
        shown(flower, (0, {"SUCCESS": 40}), (100, {"FAILURE": 5}), (200, {"RETRY": 5})),
        30,
        flower.text,
    )
    tasks = flower.tasks()
    assert "the provider said no" in tasks["job:d100"]["exception"]
    assert tasks["job:d0"]["kwargs"] == "{'job': 'job', 'gen': 1, 'doc': 'd0'}"
    assert tasks["job:d0"]["root_id"] == "job"
    assert {task["worker"] for task in tasks.values()} == {WORKER}
    assert "patient" not in json.dumps(tasks) + flower.get("/ops/task/job:d100")[1] + flower.text()


def test_failures_are_found_by_search(watched: Watched) -> None:
    """Flower's task search finds an item by its document."""
    watched.fleet.publish(1, first=300, outcome="failed")
    until(shown(watched.flower, (300, {"FAILURE": 1})), 20)
    found = watched.flower.read("/ops/api/tasks?search=kwargs:doc%3Dd300&state=FAILURE")
    assert list(found) == ["job:d300"]


def test_workers_are_shown(watched: Watched) -> None:
    """Online, with the queues that they consume, and the figures of our pool."""
    (info,) = watched.flower.read("/ops/api/workers?refresh=1").values()
    assert {queue["name"] for queue in info["active_queues"]} == {
        "penstock.control",
        "penstock.api",
    }
    assert info["stats"]["pool"]["event-share"] == 1.0
    assert watched.flower.read("/ops/api/workers?status=1") == {WORKER: True}


def test_queues_are_shown_with_what_is_held(watched: Watched) -> None:
    """Waiting, claimed and put-off messages, and consumers; a full queue without a consumer stands
    out."""
    client = watched.fleet.server.client()
    client.lpush("penstock.gpu", *range(7))
    client.hset(keys.unacked("penstock.gpu"), mapping={"a": "1", "b": "2"})
    client.zadd(keys.delayed("penstock.gpu"), {"c": 1.0})
    watched.flower.read("/ops/api/workers?refresh=1")
    rows = {
        row["name"]: row for row in watched.flower.read("/ops/api/queues/length")["active_queues"]
    }
    assert rows["penstock.gpu"] == {
        "name": "penstock.gpu",
        "messages": 9,
        "messages_ready": 7,
        "messages_unacknowledged": 2,
        "consumers": 0,
    }
    assert rows["penstock.gpu: retries that wait"]["messages"] == 1
    assert rows["penstock.api"]["consumers"] == 1
    status, page = watched.flower.get("/ops/broker")
    assert status == 200
    assert re.search(
        r"penstock\.gpu</td>\s*<td[^>]*>9</td>\s*<td[^>]*>2</td>\s*<td[^>]*>7</td>", page
    )


@pytest.mark.parametrize(
    "path",
    ["/ops/", "/ops/tasks", "/ops/broker", "/ops/api/tasks", "/ops/api/workers", "/ops/metrics"],
)
def test_nothing_is_shown_without_the_login(watched: Watched, path: str) -> None:
    """Pages, API and metrics: 401 without a login and with a wrong one."""
    assert [
        watched.flower.get(path, login)[0]
        for login in (None, "me:wrong", "root:open-sesame", LOGIN)
    ] == [401] * 3 + [200]


def test_nothing_is_changed_from_the_browser(watched: Watched) -> None:
    """Read only: no worker is ended and no task sent through Flower."""
    for path in (f"/ops/api/worker/shutdown/{WORKER}", "/ops/api/task/send-task/penstock.submit"):
        assert watched.flower.get(path, method="POST")[0] == 403


def test_no_page_holds_a_password(watched: Watched) -> None:
    """Not the broker's nor the login: pages, API, log and command line."""
    flower = watched.flower
    paths = (
        "/ops/",
        f"/ops/worker/{WORKER}",
        "/ops/broker",
        "/ops/api/workers?refresh=1",
        f"/ops/api/workers?workername={WORKER}",
    )
    pages = [flower.get(path) for path in paths]
    assert [status for status, _ in pages] == [200] * len(paths)
    command = Path(f"/proc/{flower.process.pid}/cmdline").read_text()
    said = command + flower.text() + "".join(text for _, text in pages)
    assert REDIS_PASSWORD not in said
    assert LOGIN.partition(":")[2] not in said


def test_an_item_in_flight_is_shown_without_its_text(watched: Watched) -> None:
    """A worker's page asks what it holds: ids, and not 500 documents."""
    fleet = watched.fleet
    fleet.start(name="slow", concurrency=4, seconds=3)
    until(lambda: watched.flower.read("/ops/api/workers?status=1").get("slow@test"), 20)
    fleet.publish(2_000, first=400, text="a patient's letter")
    until(lambda: held_by(watched.flower, "slow@test"))
    held = held_by(watched.flower, "slow@test")
    info = watched.flower.read("/ops/api/workers?workername=slow@test")["slow@test"]
    assert {"'job': 'job'" in item["kwargs"] for item in held} == {True}
    assert "patient" not in json.dumps(info)


def test_it_comes_back_after_a_lost_subscription(watched: Watched) -> None:
    """Redis cuts off readers that are too slow: Flower subscribes again, and hears of what comes
    then."""
    assert watched.fleet.server.command("CLIENT", "KILL", "TYPE", "pubsub") >= 1
    until(lambda: hears_of_new(watched), 30, watched.flower.text)


def hears_of_new(watched: Watched) -> bool:
    """Each call sends an item of its own: those sent while no one listened are not sent again."""
    (name,) = watched.fleet.publish(1, first=20_000 + len(watched.fleet.runs()))
    time.sleep(0.3)
    return name in watched.flower.tasks()


def test_what_schedules_start_is_shown(watched: Watched, tmp_path: Path) -> None:
    """A time that a real worker's control loop has decided is a task, with the job's key and what
    came of it, as beat's are."""
    settings = {
        "PENSTOCK_REDIS_URL": watched.url,
        "PENSTOCK_DATABASE_URL": f"sqlite:///{tmp_path}/ledger.db",
        "OPENAI_API_KEY": "none",
    }
    (tmp_path / "tickets.jsonl").write_text('{"id": 1, "text": "a patient"}\n')
    due = (time.time() // 60 - 1) * 60
    with Producer(database_url=settings["PENSTOCK_DATABASE_URL"]) as producer:
        producer.schedules.add(
            "nightly", "* * * * *", tmp_path / "tickets.jsonl", {"prompt": "{text}", "model": "m"}
        )
        producer._database.write(
            lambda connection: connection.execute(update(schedules).values(next_at=due))
        )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    words = ["worker", "--lane", "batch", "--name", "leads"]
    log = tmp_path / "worker.log"
    with log.open("wb") as out:
        worker = Penstock(
            words, env=kept | settings, stdout=out, stderr=subprocess.STDOUT, cwd=tmp_path
        )
    try:
        until(lambda: bool(fired(watched.flower)), 40, log.read_text)
        task = fired(watched.flower)[0]
        assert (task["state"], task["kwargs"]) == ("SUCCESS", "{'schedule': 'nightly'}")
        assert "started job_" in task["result"]
        assert "patient" not in json.dumps(task)
    finally:
        worker.terminate()
        worker.wait(30)


def fired(flower: Flower) -> list[dict[str, Any]]:
    return [
        task
        for name, task in flower.tasks().items()
        if name.startswith("nightly@") and task["state"] == "SUCCESS"
    ]


def test_ends_with_zero_while_redis_is_away(own_redis: RedisServer, tmp_path: Path) -> None:
    """It starts without its broker, and SIGTERM ends it within seconds while it knocks there."""
    url = own_redis.url
    own_redis.kill()
    flower = Flower.start(tmp_path, url)
    began = time.monotonic()
    assert flower.end() == 0
    assert time.monotonic() - began < 10


def test_an_open_door_is_refused(tmp_path: Path) -> None:
    """Exit status 2 and the fix, before anything listens."""
    done = run(
        ["flower", "--address", "0.0.0.0"],
        30,
        cwd=tmp_path,
        env={
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PENSTOCK_", "FLOWER_"))
        },
    )
    assert done.returncode == 2
    assert "PENSTOCK_FLOWER__AUTH" in done.stderr
