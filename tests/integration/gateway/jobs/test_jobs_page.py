"""docs/gateway-jobs.md as a new user follows it: its commands, from the first to the last, in one
shell."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from doors import door, door_settings
from servers import RedisServer

from penstock_ledger import (
    DeadLetter,
    ItemKey,
    JobState,
    JobStore,
    OutcomeStore,
    Result,
    open_database,
)

PAGE = Path(__file__).parents[4] / "docs" / "gateway-jobs.md"
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRELUDE = 'set -e -o pipefail\ncurl() { command curl -sS --fail-with-body --max-time 20 "$@"; }\n'
WITHOUT_END = "/events"  # no worker is at it, so it does not end


@pytest.mark.skipif(
    shutil.which("jq") is None or shutil.which("curl") is None, reason="the page uses curl and jq"
)
def test_the_commands_of_the_page_work_in_their_order(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    """On a fresh door, with nothing there but what the page itself makes; what workers do is
    written between two of them."""
    blocks = [block for block in BLOCK.findall(PAGE.read_text()) if WITHOUT_END not in block]
    submitting = (
        next(number for number, block in enumerate(blocks) if "tickets-2026-11-21" in block) + 1
    )
    assert "/v1/files" in blocks[submitting - 1]
    assert len(blocks) >= 7
    (tmp_path / "sources").mkdir()
    settings = door_settings(tmp_path, redis_server.url).model_copy(
        update={"source_roots": (str(tmp_path / "sources"),)}
    )
    with door(settings) as url:
        begun = [blocks[0].replace("http://127.0.0.1:8080", url), *blocks[1:submitting]]
        shell(tmp_path, begun)
        finished(settings.database_url)
        rest = [block.replace("/sources/", f"{tmp_path}/sources/") for block in blocks[submitting:]]
        purging = next(
            number for number, block in enumerate(rest) if "-X DELETE $DOOR/v1/jobs/" in block
        )
        named = f"DOOR={url}\nFILE=$(curl $DOOR/v1/files | jq -r .data[0].id)\n"
        shell(tmp_path, [named, *rest[:purging]])
        cancelled(settings.database_url)
        shell(tmp_path, [named, *rest[purging:]])
    results = (tmp_path / "results.jsonl").read_text().splitlines()
    assert len(results) == 2


def shell(folder: Path, blocks: list[str]) -> None:
    done = subprocess.run(
        ["bash", "-c", PRELUDE + "\n".join(blocks)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]


def finished(database_url: str) -> None:
    """One document has its answer, and one is the dead letter that the page looks at."""
    database = open_database(database_url)
    try:
        job_id = JobStore(database).get("tickets-2026-11-21").job_id
        body = b'{"choices": [{"message": {"content": "ok"}}]}'
        result = Result(
            ItemKey(job_id, 1, "ticket-15"), 200, body, None, "gpt-x", "stop", 5, 2, 3, 10, 1, 1
        )
        letter = DeadLetter(
            ItemKey(job_id, 1, "ticket-17"),
            "bad_request",
            1,
            1,
            "refused",
            400,
            b'{"model": "gpt-x", "messages": [{"role": "user", "content": "Summarise"}]}',
            b"no",
        )
        OutcomeStore(database).settle([result], [letter])
    finally:
        database.close()


def cancelled(database_url: str) -> None:
    """As control leaves the job once nothing of it is in flight."""
    database = open_database(database_url)
    try:
        jobs = JobStore(database)
        jobs.set_state(
            jobs.get("tickets-2026-11-21").job_id, JobState.CANCELLED, expect=[JobState.CANCELLING]
        )
    finally:
        database.close()
