"""A reader of the pages: the commands that they show, and a folder where these can be typed.

Only addresses are exchanged: what lies elsewhere has a stand-in on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet
import pytest
import typer.main
from forked import Forked
from machine import simulator
from servers import Postgres, RedisServer, S3Server, free_port

from penstock_cli.main import command_line

ROOT = Path(__file__).parents[2]
TIME_S = 90.0
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SHELL = ("sh", "bash")
PORT = re.compile(r"\b(?:8080|8399|842[56]|8600)\b")


class Typed(NamedTuple):
    """A command of a page."""

    page: str  # its path in the repository
    command: str  # lines that go on are joined
    printed: list[str]  # what the page shows of its output


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a page."""
    return [body for kind, body in FENCE.findall(text) if kind == language]


def commands_of(page: str) -> list[Typed]:
    """Return the commands of a page in their order: those behind a prompt, with their output, and
    the lines of blocks that are shell."""
    found: list[Typed] = []
    for kind, body in FENCE.findall((ROOT / page).read_text("utf-8")):
        lines = re.sub(r"\\\n\s*", " ", body).splitlines()
        is_shell = kind in SHELL or (not kind and lines[0].startswith(("penstock ", "pip ")))
        for line in lines:
            if line.startswith("$ "):
                found.append(Typed(page, line[2:], []))
            elif is_shell and line.strip() and not line.startswith("#"):
                found.append(Typed(page, line, []))
            elif kind == "console" and found:
                found[-1].printed.append(line)
    return found


def shape(line: str) -> str:
    """Return what stays of a line from run to run: its words, with `#` for every number."""
    return " ".join(re.sub(r"<?\d[\d,.]*", "#", line).split())


def missing(printed: list[str], told: str) -> list[str]:
    """Return the lines of a page that an output does not have, but for numbers; `…` is anything."""
    shapes = [shape(line) for line in told.splitlines()]
    wanted = [shape(line) for line in printed if not line.startswith("…")]
    patterns = [".*".join(map(re.escape, line.split("…"))) for line in wanted]
    return [
        line
        for line, pattern in zip(wanted, patterns, strict=True)
        if not any(re.fullmatch(pattern, one) for one in shapes)
    ]


@dataclass
class Place:
    """A folder with the reader's files, and the stand-ins."""

    folder: Path
    provider: str
    redis: RedisServer
    database_url: str
    s3: S3Server
    environment: dict[str, str] = field(default_factory=dict)
    running: list[subprocess.Popen[str]] = field(default_factory=list)
    job: str = ""
    # of this machine, in the place of those that pages name
    ports: defaultdict[str, int] = field(default_factory=lambda: defaultdict(free_port))

    def here(self, text: str) -> str:
        """The same text with the addresses of this machine's stand-ins."""
        for there, address in {
            "https://api.openai.com/v1": self.provider,
            "http://localhost:8000/v1": self.provider,
            "redis://queue:6379/0": self.redis.url,
            "postgresql://penstock@db/penstock": self.database_url,
        }.items():
            text = text.replace(there, address)
        return PORT.sub(lambda port: str(self.ports[port[0]]), text)

    def start(self, words: list[str]) -> subprocess.Popen[str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PENSTOCK_", "AWS_"))
        }
        return Forked(
            words,
            cwd=self.folder,
            env={**kept, "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}"}
            | self.environment,
            stdin=subprocess.DEVNULL,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, words: list[str]) -> tuple[int, str]:
        process = self.start(words)
        try:
            told, _ = process.communicate(timeout=TIME_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            pytest.fail(f"still running after {TIME_S:g} s: {words}\n{process.communicate()[0]}")
        return process.returncode, told


def penstock(command: str) -> list[str]:
    return [sys.executable, "-m", "penstock_cli", *shlex.split(command, comments=True)[1:]]


@contextlib.contextmanager
def reader(folder: Path, postgres: Postgres, s3: S3Server) -> Iterator[Place]:
    """Yield a reader's folder with its stand-ins, and end what was started there."""
    server = RedisServer.start(folder / "redis", appendonly=True)
    with simulator("--batch-s", "1") as provider:
        place = Place(folder, provider.url, server, postgres.new_database(), s3)
        place.environment |= {
            "OPENAI_API_KEY": "key-of-the-reader",
            "AWS_ENDPOINT_URL": s3.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        _write_files(place)
        yield place
        for process in place.running:
            process.terminate()
            process.wait()
    server.stop()


def _write_files(place: Place) -> None:
    tickets = "".join(
        json.dumps(
            {"ticket_id": f"t{n}", "id": f"t{n}", "text": f"The printer is on fire, part {n}."}
        )
        + "\n"
        for n in range(20)
    )
    (place.folder / "tickets.jsonl").write_text(tickets)
    _write_other_forms(place.folder)
    (place.folder / "batch.jsonl").write_text(
        "".join(
            json.dumps(
                {
                    "custom_id": f"b{n}",
                    "method": "POST",
                    "url": "/v1/chat/completions",
                    "body": {"model": "m", "messages": [{"role": "user", "content": "Hello."}]},
                }
            )
            + "\n"
            for n in range(10)
        )
    )
    client = place.s3.client()
    for bucket in ("bucket", "corpora", "results"):
        client.create_bucket(Bucket=bucket)
    client.put_object(Bucket="corpora", Key="tickets.jsonl", Body=tickets.encode())
    (block,) = blocks((ROOT / "docs/fleet.md").read_text("utf-8"), "toml")
    (place.folder / "penstock.toml").write_text(place.here(block))


def _write_other_forms(folder: Path) -> None:
    """A CSV, a Parquet file, a folder of texts, and a table."""
    rows = [(f"d{n}", f"The printer is on fire, part {n}.") for n in range(10)]
    (folder / "tickets.csv").write_text(
        "ticket_id,text\n" + "".join(f'{name},"{text}"\n' for name, text in rows)
    )
    columns = {"sku": [name for name, _ in rows], "text": [text for _, text in rows]}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "catalogue.parquet")
    (folder / "notes").mkdir()
    for name, text in rows:
        (folder / "notes" / f"{name}.md").write_text(text)
    with contextlib.closing(sqlite3.connect(folder / "shop.db")) as shop, shop:
        shop.execute("CREATE TABLE tickets (id TEXT PRIMARY KEY, text TEXT NOT NULL)")
        shop.executemany("INSERT INTO tickets VALUES (?, ?)", rows)


def refuse_unknown_extras(command: str) -> None:
    """Fail for an extra of the distribution that there is not."""
    found = re.search(r"(?:\.|penstock)\[([a-z0-9,]+)\]", command)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert found is None or set(found[1].split(",")) <= extras.keys(), command


def parse(command: str) -> None:
    """Have the command line take a command that cannot run here."""
    words = shlex.split(command, comments=True)[1:]
    # typer carries a click of its own, whose types are not click's
    group: Any = typer.main.get_command(command_line())
    group.commands[words[0]].make_context(words[0], words[1:])
