"""OpenAI's Files by OpenAI's own client, unmodified, against a real door."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import itertools
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import openai
import pytest
from doors import door, door_process, door_settings, memory_mib
from fleet import until
from servers import S3Server
from sqlalchemy import delete, insert, select, update

from penstock_gateway.files import store as store_module
from penstock_gateway.files.store import FileStore
from penstock_gateway.files.uploads import expire, forget
from penstock_gateway.settings import GatewaySettings
from penstock_ledger import (
    EVERYONE,
    DatabaseUnavailable,
    DoorFile,
    DoorFiles,
    FileDetails,
    Whose,
    open_database,
)
from penstock_ledger.sql.tables import door_batches, door_files

LINES = b'{"custom_id": "a"}\n' * 1000


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> GatewaySettings:
    return door_settings(tmp_path_factory.mktemp("door"), max_upload_bytes=80 * 1024 * 1024)


@pytest.fixture(scope="module")
def url(settings: GatewaySettings) -> Iterator[str]:
    with door(settings) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0) as client:
        yield client


def left(settings: GatewaySettings) -> list[str]:
    """Names below the folder of files."""
    folder = Path(settings.gateway.files)
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def test_a_file_is_uploaded_read_and_deleted(
    client: openai.OpenAI, settings: GatewaySettings
) -> None:
    """What was uploaded comes back byte by byte, and nothing of it stays once it is deleted."""
    made = client.files.create(file=("../../x.jsonl", LINES), purpose="batch")
    assert (made.id[:5], made.bytes, made.filename, made.purpose) == (
        "file-",
        len(LINES),
        "x.jsonl",
        "batch",
    )
    assert made.status == "processed"
    assert made.expires_at == made.created_at + 30 * 86_400
    assert client.files.retrieve(made.id) == made
    answer = client.files.content(made.id)
    assert answer.content == LINES
    assert answer.response.headers["etag"] == f'"{hashlib.sha256(LINES).hexdigest()}"'
    assert f"{made.id}.jsonl" in left(settings)
    assert client.files.delete(made.id).deleted
    assert [name for name in left(settings) if name.startswith(made.id)] == []
    for ask in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError) as refused:
            ask(made.id)
        assert refused.value.body["message"] == (f"No such File object: {made.id!r}")  # type: ignore[index]  # a dict


def test_an_empty_file_is_refused(client: openai.OpenAI, settings: GatewaySettings) -> None:
    """With the field's name, and nothing of it stays."""
    before = left(settings)
    with pytest.raises(openai.BadRequestError) as caught:
        client.files.create(file=("empty.jsonl", b""), purpose="batch")
    assert (caught.value.code, caught.value.param) == ("empty_file", "file")
    assert left(settings) == before


def test_a_large_file_comes_whole(client: openai.OpenAI) -> None:
    """64 MiB arrive as they were sent, by their hash."""
    data = bytes(range(256)) * 4096 * 64
    made = client.files.create(file=io.BytesIO(data), purpose="user_data")
    assert made.bytes == len(data)
    with client.files.with_streaming_response.content(made.id) as answer:
        digest = hashlib.sha256()
        for piece in answer.iter_bytes():
            digest.update(piece)
    assert digest.hexdigest() == hashlib.sha256(data).hexdigest()
    assert made.expires_at is None
    client.files.delete(made.id)


def test_lists_go_on_behind_files_that_are_deleted_meanwhile(client: openai.OpenAI) -> None:
    """Each file comes once, newest first, also for a script that deletes what it has seen."""
    made = [
        client.files.create(file=(f"{number}.txt", b"x"), purpose="evals") for number in range(5)
    ]
    page = client.files.list(purpose="evals", limit=2)
    assert [file.id for file in page.data] == [made[4].id, made[3].id]
    assert page.has_more
    oldest_first = client.files.list(purpose="evals", limit=3, order="asc")
    assert [file.id for file in oldest_first] == [file.id for file in made]
    seen = []
    for file in client.files.list(purpose="evals", limit=2):
        client.files.delete(file.id)
        seen.append(file.id)
    assert seen == [file.id for file in reversed(made)]
    assert client.files.list(purpose="evals").data == []
    with pytest.raises(openai.BadRequestError, match="after"):
        client.files.list(after="file-" + "x" * 27)


async def test_the_async_client_uploads_several_files_at_once(url: str) -> None:
    """Uploads that run beside each other do not mix."""
    async with openai.AsyncOpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0) as client:
        datas = [bytes([number]) * (3 * 1024 * 1024 + number) for number in range(4)]
        made = await asyncio.gather(
            *(client.files.create(file=data, purpose="vision") for data in datas)
        )
        answers = await asyncio.gather(*(client.files.content(file.id) for file in made))
        assert [answer.content for answer in answers] == datas
        listed = [file.id async for file in client.files.list(purpose="vision", limit=1)]
        assert sorted(listed) == sorted(file.id for file in made)
        for file in made:
            await client.files.delete(file.id)


def test_a_file_ends_at_its_time(client: openai.OpenAI, settings: GatewaySettings) -> None:
    """expires_after is kept and enforced: at each read at once, and its bytes go at the next
    look."""
    ends = {"anchor": "created_at", "seconds": 3600}
    made = client.files.create(file=b"x", purpose="batch", expires_after=ends)  # type: ignore[arg-type]  # a TypedDict
    assert made.expires_at == made.created_at + 3600
    database = open_database(settings.database_url)
    row = door_files.c.file_id == made.id
    database.write(
        lambda one: one.execute(update(door_files).where(row).values(expires_at=time.time() - 1))
    )
    with pytest.raises(openai.NotFoundError):
        client.files.content(made.id)
    assert made.id not in [file.id for file in client.files.list()]
    assert f"{made.id}.jsonl" in left(settings)
    store = FileStore(settings, database)
    assert not expire(store)
    assert f"{made.id}.jsonl" not in left(settings)
    forget(store, left_after_s=0.0)
    assert database.read(lambda one: one.execute(select(door_files).where(row)).all()) == []
    database.close()


def test_the_input_of_a_batch_at_work_stays(
    client: openai.OpenAI, settings: GatewaySettings
) -> None:
    """It is neither deleted nor expired while a batch may read it; afterwards it is."""
    made = client.files.create(file=LINES, purpose="batch")
    database = open_database(settings.database_url)
    batch = {
        "batch_id": "batch_x",
        "kind": "openai",
        "endpoint": "/v1/embeddings",
        "input_file_id": made.id,
        "window_s": 60.0,
        "state": "in_progress",
        "created_at": 1.0,
        "fence": 0,
    }
    database.write(lambda one: one.execute(insert(door_batches).values(batch)))
    with pytest.raises(openai.ConflictError, match="batch_x is at work"):
        client.files.delete(made.id)
    row = door_files.c.file_id == made.id
    database.write(lambda one: one.execute(update(door_files).where(row).values(expires_at=1.0)))
    store = FileStore(settings, database)
    expire(store)
    assert f"{made.id}.jsonl" in left(settings)
    database.write(lambda one: one.execute(update(door_batches).values(state="completed")))
    expire(store)
    assert f"{made.id}.jsonl" not in left(settings)
    database.write(lambda one: one.execute(delete(door_batches)))
    database.close()


def test_ranges_of_a_file_are_served(client: openai.OpenAI, url: str) -> None:
    """A download that broke off goes on where it was, as long as the content is the same."""
    made = client.files.create(file=b"0123456789", purpose="user_data")
    place = f"{url}/v1/files/{made.id}/content"
    whole = httpx2.get(place)
    etag = whole.headers["etag"]
    assert (whole.status_code, whole.headers["content-length"], whole.headers["accept-ranges"]) == (
        200,
        "10",
        "bytes",
    )
    assert whole.headers["content-disposition"] == "attachment; filename*=UTF-8''upload"
    assert whole.headers["x-content-type-options"] == "nosniff"
    part = httpx2.get(place, headers={"range": "bytes=4-", "if-range": etag})
    assert (part.status_code, part.content, part.headers["content-range"]) == (
        206,
        b"456789",
        "bytes 4-9/10",
    )
    assert httpx2.get(place, headers={"range": "bytes=4-", "if-range": '"x"'}).status_code == 200
    beyond = httpx2.get(place, headers={"range": "bytes=10-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, "bytes */10")
    assert beyond.json()["error"]["code"] == "invalid_range"
    assert httpx2.get(place, headers={"if-none-match": etag}).status_code == 304
    head = httpx2.head(place)
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "10", b"")


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "%2e%2e%2fx", "file-..%2f", "x" * 5_000, "file-%00" + "a" * 30]
)
def test_ids_that_are_none_are_unknown(url: str, name: str) -> None:
    """No path is made of what a caller writes: a 404, as for any unknown id."""
    assert httpx2.get(f"{url}/v1/files/{name}").status_code == 404


FORM = {"content-type": "multipart/form-data; boundary=b"}
FILE_PART = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
PURPOSE_PART = b'\r\n--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch'


@pytest.mark.parametrize(
    ("headers", "body", "status", "says"),
    [
        ({"content-type": "application/json"}, b"{}", 415, "multipart/form-data"),
        ({"content-type": "multipart/form-data"}, b"", 400, "boundary"),
        (FORM | {"content-encoding": "gzip"}, b"x", 415, "Content-Encoding"),
        (FORM, b"", 400, "ends before"),
        (FORM, FILE_PART + b"x\r\n--b--", 400, "'purpose'"),
        (FORM, PURPOSE_PART[2:] + b"\r\n--b--", 400, "'file'"),
        (
            FORM,
            FILE_PART + b"x\r\n" + FILE_PART + b"y" + PURPOSE_PART + b"\r\n--b--",
            400,
            "several",
        ),
        (
            FORM,
            FILE_PART.replace(b'; filename="x"', b"") + b"x" + PURPOSE_PART + b"\r\n--b--",
            400,
            "must be a file",
        ),
        (FORM, FILE_PART + b"x" + PURPOSE_PART, 400, "ends before"),
        (
            FORM,
            FILE_PART.replace(b"\r\n\r\n", b"\r\nx: " + b"y" * 9000 + b"\r\n\r\n"),
            400,
            "8192 bytes",
        ),
        (
            FORM,
            PURPOSE_PART[2:].replace(b"batch", b"batch" * 1000) + b"\r\n--b--",
            400,
            "1024 bytes",
        ),
        (FORM, b"--b\r\n\r\n" * 100_000, 400, "Content-Disposition"),
    ],
)
def test_forms_that_are_no_uploads_are_refused_and_leave_nothing(
    settings: GatewaySettings,
    url: str,
    headers: dict[str, str],
    body: bytes,
    status: int,
    says: str,
) -> None:
    """Each is answered in OpenAI's shape, and no byte of it stays on the disk."""
    before = left(settings)
    answer = httpx2.post(f"{url}/v1/files", headers=headers, content=body)
    assert (answer.status_code, says in answer.json()["error"]["message"]) == (status, True), (
        answer.text
    )
    assert left(settings) == before


@pytest.mark.parametrize("stated", [True, False])
def test_an_upload_beyond_the_limit_is_refused_while_it_comes(
    url: str, settings: GatewaySettings, stated: bool
) -> None:
    """413, before the first byte where the length is stated, and while it streams where it is
    not."""
    before = left(settings)
    piece = b"x" * 1024 * 1024
    number = settings.gateway.max_upload_bytes // len(piece) + 2
    body = itertools.chain(
        [FILE_PART], itertools.repeat(piece, number), [PURPOSE_PART + b"\r\n--b--"]
    )
    total = len(FILE_PART) + number * len(piece) + len(PURPOSE_PART) + 7
    headers = FORM | ({"content-length": str(total)} if stated else {})
    answer = httpx2.post(f"{url}/v1/files", headers=headers, content=body, timeout=60)
    # by the door of all bodies, and by what reads the form
    code = "body_too_large" if stated else "file_too_large"
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, code)
    assert left(settings) == before


def test_the_purpose_may_come_after_the_file(url: str) -> None:
    """Fields come in any order."""
    answer = httpx2.post(
        f"{url}/v1/files", headers=FORM, content=FILE_PART + b"x" + PURPOSE_PART + b"\r\n--b--"
    )
    assert (answer.status_code, answer.json()["purpose"]) == (200, "batch")


def test_a_client_that_goes_away_leaves_no_half_file(url: str, settings: GatewaySettings) -> None:
    """What had come of its upload is removed at once."""
    before = left(settings)
    with half_an_upload(url):
        until(lambda: len(left(settings)) > len(before), 30, "a part of the file is there")
    until(lambda: left(settings) == before, 30, "nothing of it is left")


def test_a_killed_door_leaves_no_half_file_and_memory_stays_flat(tmp_path: Path) -> None:
    """An upload of 64 MiB costs the process some MiB; after a kill -9 in the middle of one, no
    reader finds it, and the next look removes its bytes."""
    settings = door_settings(tmp_path)
    with door_process(settings) as (url, process):
        with openai.OpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0) as client:
            client.files.create(file=b"x" * 1024 * 1024, purpose="batch")
            before = memory_mib(process.pid, "VmHWM")
            kept = client.files.create(file=b"x" * 64 * 1024 * 1024, purpose="batch")
            client.files.content(kept.id)
            assert memory_mib(process.pid, "VmHWM") - before < 24
        with half_an_upload(url):
            until(
                lambda: any(name.endswith(".part") for name in left(settings)),
                30,
                "a part of the file is there",
            )
            process.kill()
            process.wait()
    with (
        door_process(settings) as (url, _),
        openai.OpenAI(api_key="none", base_url=f"{url}/v1") as client,
    ):
        assert next(file.id for file in client.files.list(limit=1)) == kept.id
        assert len(list(client.files.list())) == 2
    database = open_database(settings.database_url)
    forget(FileStore(settings, database), left_after_s=0.0)
    database.close()
    assert len(left(settings)) == 2
    assert not any(name.endswith(".part") for name in left(settings))


def test_outputs_of_batches_appear_whole_or_not_at_all(
    settings: GatewaySettings, client: openai.OpenAI
) -> None:
    """Lines that end in an error leave no file, no line makes none, and a whole one is listed for
    its owner."""
    database = open_database(settings.database_url)
    store, before = FileStore(settings, database), left(settings)

    def broken() -> Iterator[bytes]:
        yield b"x\n" * 1_000_000
        raise RuntimeError("the ledger is away")

    with pytest.raises(RuntimeError):
        store.create_from(broken(), tenant=None, filename="out.jsonl")
    assert store.create_from([], tenant=None, filename="out.jsonl") is None
    assert left(settings) == before
    made = store.create_from([b"a\n", b"b\n"], tenant=None, filename="out.jsonl", job_id="job")
    assert made is not None
    assert (made.lines, made.job_id, Path(store.place(made)).read_bytes()) == (2, "job", b"a\nb\n")
    assert [file.id for file in client.files.list(purpose="batch_output")] == [made.file_id]
    assert store.get(made.file_id, Whose("another")) is None
    assert not store.delete(made, Whose("another"))
    assert store.delete(made, EVERYONE)
    database.close()


def test_a_file_whose_commit_was_not_answered_keeps_its_bytes(settings: GatewaySettings) -> None:
    """The row is shown although the database said nothing: the next try finds it by its job,
    whole."""
    database = open_database(settings.database_url)
    store = FileStore(settings, database)

    class Unanswered(DoorFiles):
        def finish(self, file_id: str, details: FileDetails) -> DoorFile | None:
            super().finish(file_id, details)
            raise DatabaseUnavailable("the database", "the connection was lost")

    store.rows = Unanswered(database)
    with pytest.raises(DatabaseUnavailable):
        store.create_from([b"a\n"], tenant=None, filename="out.jsonl", job_id="job_unanswered")
    made = store.rows.written("job_unanswered", "out.jsonl")
    assert made is not None
    assert store.reader(made).read(0, 2) == b"a\n"
    assert store.delete(made, EVERYONE)
    database.close()


def test_files_lie_in_a_bucket_as_well(
    tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same uploads, ranges and removals with objects instead of files."""
    for name, value in {
        "ACCESS_KEY_ID": "test",
        "SECRET_ACCESS_KEY": "test",
        "DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    s3_server.client().create_bucket(Bucket="door-files")
    made = door_settings(tmp_path)
    place = made.gateway.model_copy(update={"files": "s3://door-files/below"})
    in_bucket = made.model_copy(update={"gateway": place, "s3_endpoint_url": s3_server.url})
    data = bytes(range(256)) * 4096 * 12
    with (
        door(in_bucket) as url,
        openai.OpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0) as client,
    ):
        file = client.files.create(file=data, purpose="batch")
        assert client.files.content(file.id).content == data
        part = httpx2.get(f"{url}/v1/files/{file.id}/content", headers={"range": "bytes=-5"})
        assert (part.status_code, part.content) == (206, data[-5:])
        client.files.delete(file.id)
        with half_an_upload(url):
            pass
    assert "Contents" not in s3_server.client().list_objects_v2(Bucket="door-files")


@pytest.mark.parametrize(
    "option",
    [
        {},
        {"format": "text"},
        {"format": "media"},
        {"query": "SELECT 1"},
        {"table": "t"},
        {"format": "parquet"},
        {"sample": 3},
    ],
)
def test_where_an_upload_lies_is_told_to_nobody(
    url: str, client: openai.OpenAI, settings: GatewaySettings, option: dict[str, object]
) -> None:
    """Whatever is wrong with it, or with how it is to be read: a refusal names the file and not a
    folder of the server."""
    file = client.files.create(file=("in.jsonl", LINES), purpose="batch")
    for path in ("jobs", "jobs/preview", "jobs/estimate"):
        answer = httpx2.post(
            f"{url}/v1/{path}", json={"source": file.id, "model": "m", "prompt": "{no}", **option}
        )
        assert answer.status_code == 400 or path != "jobs"
        assert str(Path(settings.gateway.files).parent) not in answer.text


def test_a_full_disk_is_said_in_words(
    url: str, settings: GatewaySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """507 before anything is written, so that the disk keeps room for the ledger."""
    before = left(settings)
    monkeypatch.setattr(store_module, "FREE_BYTES_MIN", 2**60)
    answer = httpx2.post(
        f"{url}/v1/files", headers=FORM, content=FILE_PART + b"x" + PURPOSE_PART + b"\r\n--b--"
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "insufficient_storage")
    assert left(settings) == before


@contextlib.contextmanager
def half_an_upload(url: str) -> Iterator[None]:
    """A client that has sent some MiB of a larger file, and goes away at the end of the block."""
    host = urlsplit(url)
    with socket.create_connection((str(host.hostname), int(host.port or 0))) as connection:
        head = (
            f"POST /v1/files HTTP/1.1\r\nhost: {host.netloc}\r\ncontent-length: 50000000\r\n"
        ).encode()
        connection.sendall(
            head + b"content-type: " + FORM["content-type"].encode() + b"\r\n\r\n" + FILE_PART
        )
        connection.sendall(b"x" * 5_000_000)
        yield
