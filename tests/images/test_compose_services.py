"""The compose file's services as plain processes: their own commands and environments, on a real
Redis and PostgreSQL.

Containers add a file system and a network; which command is started with which settings, and
whether that makes a fleet, is seen here. `make test-images` starts the containers.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from fleet import Process, until
from forked import Forked
from images.compose_file import FILES, ROOT, Service, example_environment, services
from images.image_programs import local
from servers import free_port, redis_binary

DOCUMENTS = 60
JOB_S = 90.0
PATIENCE_S = 30.0
HOSTS = ("redis:6379", "postgres:5432", "simulate:8399")


class Machine:
    """Starts services of the file with the names of hosts and the folders of containers replaced,
    and nothing else."""

    def __init__(self, folder: Path, postgres_url: str) -> None:
        self.folder = folder
        self.ports = {host: free_port() for host in HOSTS}
        self.postgres_url = postgres_url
        self.processes: list[Process] = []
        # DEMO_DOCS is set by these tests; all else is as in the example that users copy.
        self.services = services(
            FILES[0], example_environment() | {"DEMO_DOCS": str(DOCUMENTS), "API_CONCURRENCY": "32"}
        )

    def start(self, name: str, *more: str) -> Process:
        service = self.services[name]
        log = self.folder / f"{name}-{len(self.processes)}.log"
        with log.open("wb") as out:
            popen = Forked(
                [*self._argv(service), *more],
                env=self._environment(service),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        process = Process(name, log, popen)
        self.processes.append(process)
        return process

    def redis(self) -> redis.Redis:
        url = self._here(self.services["worker-api"].environment["PENSTOCK_REDIS_URL"])
        return redis.Redis.from_url(url, decode_responses=True)

    def end(self) -> None:
        for process in self.processes:
            process.kill()

    def redis_answers(self) -> bool:
        try:
            return bool(self.redis().ping())
        except redis.ConnectionError:
            return False

    def _argv(self, service: Service) -> list[str]:
        argv = [self._here(word) for word in service.argv]
        if argv[:2] == ["sh", "-c"]:
            here = (
                f"{shlex.quote(redis_binary())} - --port {self.ports['redis:6379']} --bind 127.0.0.1 "
                f"--dir {shlex.quote(str(self.folder))}"
            )
            assert "redis-server - " in argv[2]
            return ["sh", "-c", argv[2].replace("redis-server -", here, 1)]
        assert argv[:2] == ["tini", "--"], argv
        return local(
            [str(self.ports["simulate:8399"]) if word == "8399" else word for word in argv]
        )

    def _environment(self, service: Service) -> Mapping[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PENSTOCK_", "AWS_"))
        }
        ours = {name: self._here(value) for name, value in service.environment.items()}
        (self.folder / service.name).mkdir(exist_ok=True)
        # One machine has one port of a number: each process gets a free one.
        return kept | ours | {"PENSTOCK_METRICS_PORT": "0", "PENSTOCK_METRICS_HOST": "127.0.0.1"}

    def _here(self, text: str) -> str:
        if text.startswith("postgresql://"):
            assert urlsplit(text).netloc.rpartition("@")[2] == "postgres:5432"
            return self.postgres_url
        for host, port in self.ports.items():
            text = text.replace(host, f"127.0.0.1:{port}")
        folders = {
            "/results": self.folder / "results",
            "/tmp/probe": self.folder / "probe",
            "/examples": ROOT / "examples",
        }
        for inside, outside in folders.items():
            text = str(outside) + text.removeprefix(inside) if text.startswith(inside) else text
        return text.replace("0.0.0.0", "127.0.0.1")


@pytest.fixture
def machine(tmp_path: Path, postgres_url: str) -> Iterator[Machine]:
    machine = Machine(tmp_path, postgres_url)
    with ExitStack() as ends:
        ends.callback(machine.end)
        yield machine


def test_a_job_runs_through_the_services_to_its_end(machine: Machine) -> None:
    """`docker compose --profile demo up`, without Docker: every service's own command, and the
    demo's job has its end.

    After SIGTERM, workers and control end with 0 within their grace, and Redis holds nothing of
    theirs.
    """
    machine.start("redis")
    migrate = machine.start("migrate")
    until(machine.redis_answers, PATIENCE_S, "Redis answers, with its password")
    assert migrate.wait(PATIENCE_S) == 0, migrate.tail()
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(port=machine.ports["redis:6379"]).ping()
    staying = [machine.start(name) for name in ("simulate", "control", "worker-api", "worker-api")]
    demo = machine.start("demo")
    try:
        status = demo.wait(JOB_S)
    finally:
        print("\n".join(process.tail() for process in machine.processes))
    said = demo.log.read_text()
    assert status == 0, said
    assert f"demo: {DOCUMENTS} documents are in job" in said
    assert "demo: the job is completed" in said
    # Faults are part of the demo: every document has one outcome, most of them results.
    assert {path.name for path in machine.folder.glob("results/*/*")} == {
        "errors.jsonl",
        "output.jsonl",
    }

    for process in staying[1:]:
        process.send(signal.SIGTERM)
    for process in staying[1:]:
        assert process.wait(machine.services[process.name].seconds("stop_grace_period")) == 0, (
            process.tail()
        )
    client = machine.redis()
    assert [name for name in client.scan_iter("unacked*") if client.type(name) == "hash"] == []


def test_the_command_line_of_the_file_reaches_the_fleet(machine: Machine) -> None:
    """`docker compose run --rm cli …` has the fleet's settings: it lists jobs, and says so when
    there is none."""
    machine.start("redis")
    until(machine.redis_answers, PATIENCE_S, "Redis answers")
    assert machine.start("migrate").wait(PATIENCE_S) == 0
    cli = machine.start("cli")
    assert cli.wait(PATIENCE_S) == 0, cli.tail()


def test_flower_starts_with_the_files_settings_and_asks_who_is_there(machine: Machine) -> None:
    """Its page is closed without the password of the environment's example."""
    import urllib.error
    import urllib.request

    machine.start("redis")
    until(machine.redis_answers, PATIENCE_S, "Redis answers")
    port = free_port()
    flower = machine.start("flower", f"--port={port}")
    url = f"http://127.0.0.1:{port}/workers"

    def refuses() -> bool:
        assert flower.alive, flower.tail()
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except urllib.error.HTTPError as error:
            return error.code == 401
        except OSError:
            return False
        return False

    until(refuses, PATIENCE_S, shlex.join(["flower", "refuses", url]))
