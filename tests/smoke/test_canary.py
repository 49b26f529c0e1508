"""A faulty run of a whole fleet that is given canaries for secrets, and then a look at everything
that it left behind."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import forked
import pytest
from celery import Celery
from fleet import Fleet, until
from otlp import Collector
from servers import RedisServer, give_acl
from sqlalchemy import create_engine, inspect, text

from penstock_ledger.model import JobState

KEY = "canary-key-4f1d9c2b7a60"  # of no known shape: it is hidden because it was configured
PASSWORD = "canary-redis-0b8e55d1"
DATABASE = "canary-sql-77a1c3e9"
TRACES = "canary-otlp-1d2e3f40"
WRONG = "canary-wrong-9a8b7c6d"
# never configured: it is hidden because of its shape
SHAPED = "sk-canary-of-another-user-0123456789"
CANARIES = (KEY, PASSWORD, DATABASE, TRACES, WRONG, SHAPED)

HOOK = (
    "import os\n"
    "\n"
    "\n"
    "def tell(item, response):\n"
    '    raise RuntimeError(f"\\nERROR forged {dict(os.environ)}")\n'
)


@contextmanager
def echo() -> Iterator[str]:
    """A provider that repeats the key in bodies and headers, as text and as JSON; what it answers
    is in the prompt.

    A good answer repeats it on `echo` alone: such an answer is stored as it came, unless a hook
    makes a dead letter of it.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            words = asked["messages"][-1]["content"]
            status = next((code for code in (400, 401, 500) if str(code) in words), 200)
            sent = self.headers["Authorization"]
            said: dict[str, Any] = {
                "error": {
                    "message": f"{sent} is wrong; so is {SHAPED}\x1b[2J\nERROR forged",
                    "code": sent,
                }
            }
            if status == 200:
                who = sent if "echo" in words else "somebody"
                said = {
                    "choices": [
                        {"message": {"content": f"you are {who}"}, "finish_reason": "stop"}
                    ],
                    "model": "m",
                }
            body = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("X-Request-Id", sent)
            self.send_header("X-RateLimit-Limit-Requests", sent)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Not into the test's output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def source(folder: Path, name: str, *texts: str) -> Path:
    path = folder / f"{name}.jsonl"
    path.write_text(
        "".join(
            json.dumps({"id": f"{name}-{number}", "text": said}) + "\n"
            for number, said in enumerate(texts)
        )
    )
    return path


class Heard(threading.Thread):
    """Everything that is published in Redis: task events and remote control."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__(daemon=True)
        self.messages: list[bytes] = []
        client: Any = server.client()
        self._pubsub = client.pubsub(ignore_subscribe_messages=True)
        self._pubsub.psubscribe("*")
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.is_set():
            message = self._pubsub.get_message(timeout=0.1)
            if message:
                self.messages.append(message["data"])


def unpacked(message: bytes) -> str:
    """A message of kombu's, whose body is base64."""
    return message.decode() + base64.b64decode(json.loads(message)["body"]).decode()


def redis_contents(server: RedisServer) -> str:
    client: Any = server.client()
    read = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"set": client.smembers,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
    }
    return repr([(key, read[client.type(key)](key)) for key in client.keys("*")])


def sql_contents(url: str) -> str:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        tables = inspect(connection).get_table_names()
        assert {"jobs", "outcomes"} <= set(tables) or len(tables) > 4
        found = [
            tuple(row)
            for table in tables
            for row in connection.execute(text(f'SELECT * FROM "{table}"'))
        ]
    engine.dispose()
    return repr(
        [[bytes(cell) if isinstance(cell, memoryview) else cell for cell in row] for row in found]
    )


def test_no_secret_is_left_anywhere(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No configured secret and no key of a provider is in any output, row, key, message, event,
    trace, metric or log (B14)."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "canary_hook.py").write_text(HOOK)
    database = postgres_url.replace("postgres:@", f"postgres:{DATABASE}@").replace(
        "postgres@", f"postgres:{DATABASE}@"
    )
    assert DATABASE in database
    for name, value in {
        "CANARY_API_KEY": KEY,
        "PYTHONPATH": str(tmp_path / "code"),
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={TRACES}",
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
    }.items():
        monkeypatch.setenv(name, value)
    with (
        echo() as provider,
        Collector() as collector,
        Fleet(tmp_path / "fleet", database_url=database) as fleet,
    ):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        give_acl(fleet.redis, "fleet", PASSWORD)
        url = f"redis://fleet:{PASSWORD}@127.0.0.1:{fleet.redis.port}/0"
        fleet._settings = {
            "redis_url": url,
            "providers__default__base_url": provider,
            "providers__default__api_key_env": "CANARY_API_KEY",
            "trace_share": 1,
            "results_url": tmp_path / "results",
            "hook_modules": '["canary_hook"]',
            "event_sample": 1,
        }
        heard = Heard(fleet.redis)
        heard.start()
        fleet.control()
        worker = fleet.worker(8)
        fleet.ready(worker)
        control = Celery(broker=fleet.redis.url).control
        until(
            lambda: len(control.enable_events(reply=True, timeout=3, limit=2)) == 2,
            60,
            "both processes send events",
        )
        spec = {"lane": "api", "model": "m", "prompt": "{text}", "max_attempts": 2}
        mixed = fleet.producer.submit(
            source(tmp_path, "mixed", "ok", "400", "500", "ok"), spec, job_key="mixed"
        )
        hooked = fleet.producer.submit(
            source(tmp_path, "hooked", "echo"),
            {**spec, "postprocess": "canary_hook:tell"},
            job_key="hooked",
        )
        fleet.wait_for(mixed, JobState.COMPLETED, 60)
        fleet.wait_for(hooked, JobState.COMPLETED, 60)
        held = fleet.producer.submit(source(tmp_path, "held", "401"), spec, job_key="held")
        fleet.wait_for(held, JobState.PAUSED, 60)

        shown = commands(fleet, url)
        until(lambda: collector.payloads and collector.reports, 30, "traces and metrics arrive")
        heard.ended.set()
        heard.join()
        left = {
            "redis": redis_contents(fleet.redis),
            "sql": sql_contents(database),
            "events": "\n".join(map(unpacked, heard.messages)),
            "traces": repr(collector.payloads),
            "metrics": repr(collector.reports),
            "commands": "\n".join(shown),
            **{str(path): path.read_text(errors="replace") for path in files(tmp_path)},
        }
    looked_everywhere(left)
    found = [
        (canary, place, around(said, canary))
        for place, said in left.items()
        for canary in CANARIES
        if canary in said
    ]
    assert found == []
    logs = "".join(said for name, said in left.items() if name.endswith(".log"))
    assert not [line for line in logs.splitlines() if line.startswith("ERROR forged")]
    assert "\x1b[2J" not in logs


def commands(fleet: Fleet, url: str) -> list[str]:
    """What commands print about the fleet, and what they print with a wrong password in each
    setting."""
    asked = (
        ["dlq", "list", "mixed"],
        ["dlq", "show", "hooked", "hooked-0"],
        ["status", "held"],
        ["limits"],
        ["doctor", "--report", "-"],
    )
    return [
        *(run(fleet, *arguments) for arguments in asked),
        run(fleet, "doctor", "--no-provider", PENSTOCK_REDIS_URL=url.replace(PASSWORD, WRONG)),
        run(fleet, "jobs", PENSTOCK_DATABASE_URL=f"mysql://fleet:{WRONG}@127.0.0.1/x"),
        run(
            fleet,
            "worker",
            "--lane",
            "api",
            PENSTOCK_REDIS_URL=f"redis://fleet:{WRONG}/x@127.0.0.1/0",
        ),
    ]


def looked_everywhere(left: dict[str, str]) -> None:
    """The test looked at the right places: each has what the run was about."""
    assert "[redacted]" in left["sql"]
    assert "[redacted]" in left["commands"]
    assert "calls to default fail: job " in left["commands"]
    assert "task-failed" in left["events"]
    assert any("output.jsonl" in name for name in left)
    assert any("api-" in name for name in left)
    assert len(left["traces"]) > 1_000


def around(said: str, canary: str) -> str:
    at = said.index(canary)
    return said[max(0, at - 200) : at + 100]


def files(folder: Path) -> list[Path]:
    """What the fleet wrote. Sources and the hook are the user's own."""
    own = {"code", "redis"}
    return [
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not own & set(path.parts)
        and path.parent != folder
        and path.suffix != ".pyc"
    ]


def run(fleet: Fleet, *arguments: str, **variables: str) -> str:
    """A Penstock command with the fleet's settings, whatever its exit status."""
    done = forked.run(arguments, 60, env=fleet._environment({}) | variables)
    return f"$ {arguments} -> {done.returncode}\n{done.stdout}{done.stderr}"
