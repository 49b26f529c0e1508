"""PostgreSQL goes away under a running `penstock gateway`, and comes back: a real server that is
stopped and started."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path

from batch_door import as_jsonl, chat
from doors import Answer, asked, connected, door_process, door_settings, received
from fleet import until
from servers import Postgres, RedisServer

from penstock_ledger import Whose, open_database
from penstock_ledger.door_stores.files import DoorFiles
from penstock_producer import Producer

SOON_S = 30.0
ANSWER_S = 15.0  # for which a caller waits at most: a driver must not hang on a server that is gone
FORM = (
    b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n%b\r\n--b--\r\n'
)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
OPEN = {"open": True, "model": "m", "prompt": "{text}"}


class Doors:
    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, path: str, body: object) -> Answer:
        return asked(
            f"{self.url}{path}", json.dumps(body).encode(), content_type="application/json"
        )

    def upload(self) -> Answer:
        body = FORM % as_jsonl([chat(0)])
        return asked(f"{self.url}/v1/files", body, content_type="multipart/form-data; boundary=b")

    def batch(self, file_id: str) -> Answer:
        given = {
            "input_file_id": file_id,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        return self.post("/v1/batches", given)


def test_work_goes_on_by_itself_when_postgresql_is_back(
    own_postgres: Postgres, redis_server: RedisServer, tmp_path: Path
) -> None:
    """While it is away: 503 with Retry-After in the envelope of each door, also for what was under
    way, and /health says what is away. Then the same process answers again, the batch that was
    waiting becomes a job, and nothing is half there."""
    database_url = own_postgres.new_database()
    with closing(open_database(database_url)) as database:
        database.migrate()
    settings = door_settings(tmp_path, redis_server.url).model_copy(
        update={"database_url": database_url}
    )
    with door_process(settings) as (url, process):
        doors = Doors(url)
        until(lambda: asked(f"{url}/health").status == 200, SOON_S, "the door is ready")
        file_id = doors.upload().content["id"]
        job_id = doors.post("/v1/jobs", OPEN).content["id"]
        stored = sorted(one.name for one in (tmp_path / "files").iterdir())
        half = FORM % (b"{}\n" * 1_000)
        head = "POST /v1/files HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        head += (
            f"content-type: multipart/form-data; boundary=b\r\ncontent-length: {len(half)}\r\n\r\n"
        )
        with connected(url) as upload:
            upload.sendall(head.encode() + half[:-1_000])
            until(
                lambda: len(list((tmp_path / "files").iterdir())) > len(stored),
                SOON_S,
                "an upload is under way",
            )
            with own_postgres.away():
                upload.sendall(half[-1_000:])
                assert received(upload).startswith(b"HTTP/1.1 503")
        with own_postgres.away():
            began = time.monotonic()
            answers = {
                "files": doors.upload(),
                "batches": doors.batch(file_id),
                "list": asked(f"{url}/v1/batches"),
                "jobs": doors.post("/v1/jobs", OPEN),
                "push": doors.post(
                    f"/v1/jobs/{job_id}/items", {"id": "d", "document": {"text": "x"}}
                ),
                "chat": doors.post("/v1/chat/completions", CHAT),
                "messages": asked(f"{url}/v1/messages/batches"),
            }
            assert time.monotonic() - began < ANSWER_S * len(answers)
            for name, answer in answers.items():
                assert (name, answer.status) == (name, 503)
                assert int(answer.headers["retry-after"]) > 0, name
                told = answer.content
                if name in ("jobs", "push"):
                    assert (told["status"], told["code"]) == (503, "service_unavailable")
                elif name == "messages":
                    assert told["type"] == "error"
                else:
                    assert told["error"]["code"] == "service_unavailable"
                assert str(own_postgres.folder) not in answer.body.decode()
            health = asked(f"{url}/health")
            assert (health.status, health.content["database"], health.content["redis"]) == (
                503,
                "away",
                "ok",
            )
            assert asked(f"{url}/livez").status == 200
        until(lambda: asked(f"{url}/health").status == 200, SOON_S, "the door is ready again")
        assert process.poll() is None
        batch_id = doors.batch(file_id).content["id"]
        until(
            lambda: asked(f"{url}/v1/batches/{batch_id}").content["status"] == "in_progress",
            SOON_S,
            "the batch is a job",
        )
        assert doors.post(
            f"/v1/jobs/{job_id}/items", {"id": "d", "document": {"text": "x"}}
        ).status in (200, 201, 202)
        listed = asked(f"{url}/v1/batches").content["data"]
        assert [one["id"] for one in listed] == [batch_id], "nothing of what was refused is there"
        with Producer(settings) as producer:
            assert producer.status(job_id).counts.dead == 0
        with closing(open_database(database_url)) as database:
            page = DoorFiles(database).page(Whose(None), limit=10, newest_first=True)
            assert page is not None
            assert [one.file_id for one in page.files] == [file_id]
        # Of the upload whose row could not be written only its bytes are there, which no caller
        # sees and cleaning removes later.
        assert len(list((tmp_path / "files").iterdir())) <= len(stored) + 1
        assert not list((tmp_path / "files").glob("*.part"))
