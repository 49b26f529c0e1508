"""What the clients of batch APIs make of providers that break off, lie, repeat themselves and never
end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from batch_servers import (
    KEY,
    KEY_VARIABLE,
    SHORT,
    TAG,
    BatchServer,
    all_answers,
    batch_server,
    cut,
    packed,
    provider_at,
)

from penstock_workers.lanes.batch.apis import output_lines
from penstock_workers.lanes.batch.apis.provider import (
    AccountStopped,
    Astray,
    BatchAnswer,
    BatchError,
    BatchGone,
    BatchProvider,
    BatchRefused,
    BatchSeen,
    LineProblem,
    NewBatch,
    TokenCapReached,
    TryLater,
    Unclear,
    UnreadableLine,
)

CHAT = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[]}'
BATCH = {
    "id": "batch_1",
    "object": "batch",
    "status": "in_progress",
    "input_file_id": "file-1",
    "created_at": 1_000,
}
ENDED = BatchSeen("batch_1", "completed", True, None, outputs=("file-out",), file_id="file-1")
KINDS = ["openai", "anthropic", "gemini"]
ENDPOINTS = {"openai": CHAT, "anthropic": "/v1/messages", "gemini": "/v1beta/generateContent"}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)


@pytest.fixture
async def server() -> AsyncIterator[BatchServer]:
    async with batch_server() as made:
        yield made


@pytest.fixture
async def openai(server: BatchServer) -> AsyncIterator[BatchProvider]:
    async with provider_at(server.url + "/v1") as made:
        yield made


def says(
    status: int, body: Any, headers: dict[str, str] | None = None
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        await request.read()
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        return web.Response(status=status, body=sent, headers=headers)

    return handle


async def breaks_off(request: web.Request) -> web.StreamResponse:
    await request.read()
    return cut(web.Response(), request)


async def never_answers(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def endless(request: web.Request) -> web.StreamResponse:
    """A body of JSON that does not end."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" " * 1_000_000)


def error(code: str, message: str = "words") -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "type": "t"}}


# -- a create whose answer is anything -------------------------------------------------------------

PAGE = b"<!DOCTYPE html><html>login</html>"
OF_A_CREATE: dict[str, tuple[Any, type[BatchError]]] = {
    "500": (says(500, error("server_error")), Unclear),
    "502 page": (says(502, PAGE), Unclear),
    "503 page": (says(503, PAGE), Unclear),
    "504": (says(504, b""), Unclear),
    "503 in its own words": (says(503, error("server_is_overloaded")), TryLater),
    "409": (says(409, error("conflict")), Unclear),
    "429": (says(429, error("rate_limit_exceeded"), {"retry-after": "7"}), TryLater),
    "429 without money": (says(429, error("insufficient_quota")), AccountStopped),
    "429 of the token cap": (says(429, error("token_limit_exceeded")), TokenCapReached),
    "400 of the token cap": (says(400, error("token_limit_exceeded")), TokenCapReached),
    "400": (says(400, error("invalid_endpoint")), BatchRefused),
    "413": (says(413, b""), BatchRefused),
    "404": (says(404, error("no_such_file")), BatchGone),
    "401": (says(401, error("invalid_api_key")), AccountStopped),
    "403": (says(403, error("no_rights")), Astray),
    "401 page": (says(401, PAGE), Astray),
    "redirect": (says(307, b"", {"location": "/elsewhere"}), Astray),
    "405": (says(405, b""), Astray),
    "cut": (breaks_off, Unclear),
    "endless": (endless, Unclear),
    "200 page": (says(200, PAGE), Unclear),
    "200 list": (says(200, []), Unclear),
    "200 nothing": (says(200, b""), Unclear),
    "200 wrong types": (says(200, {"id": 7, "status": ["x"]}), Unclear),
    "200 half": (says(200, b'{"id":"batch_1","stat'), Unclear),
    "200 id with a newline": (says(200, {"id": "batch\n1", "status": "x"}), Unclear),
}


@pytest.mark.parametrize("name", OF_A_CREATE)
async def test_every_answer_to_a_create_has_a_meaning(
    server: BatchServer, openai: BatchProvider, name: str
) -> None:
    """It is sent once; where it may have worked it is Unclear, and never tried again by itself."""
    server.handle, expected = OF_A_CREATE[name]
    with pytest.raises(BatchError) as caught:
        await openai.create(NewBatch(TAG, Path("none"), CHAT, "m", 1, "file-1"))
    assert type(caught.value) is expected, caught.value
    assert server.asked == ["POST /v1/batches"]


async def test_a_wait_that_the_provider_asks_for_is_told(
    server: BatchServer, openai: BatchProvider
) -> None:
    """Retry-After becomes the time of TryLater."""
    server.handle = says(429, error("rate_limit_exceeded"), {"retry-after": "7"})
    with pytest.raises(TryLater) as caught:
        await openai.look("batch_1")
    assert caught.value.after_s == 7


async def test_a_server_that_is_not_there_has_taken_nothing() -> None:
    """No connection: the same create may be made again."""
    async with batch_server() as server:
        url = server.url
    async with provider_at(url) as provider:
        with pytest.raises(TryLater):
            await provider.create(NewBatch(TAG, Path("none"), CHAT, "m", 1, "file-1"))


async def test_a_create_without_an_answer_is_unclear(server: BatchServer) -> None:
    """A server that takes the request and says nothing may have done it."""
    server.handle = never_answers
    async with provider_at(server.url, times=SHORT._replace(call_s=0.1)) as provider:
        with pytest.raises(Unclear):
            await provider.create(NewBatch(TAG, Path("none"), CHAT, "m", 1, "file-1"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 302])
async def test_keys_are_in_no_error(
    server: BatchServer, kind: str, status: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A provider that repeats the headers in its refusal does not get the key into an error or a
    log line."""

    async def echo(request: web.Request) -> web.Response:
        await request.read()
        said = {"error": {"message": f"refused: {dict(request.headers)}", "code": KEY}}
        return web.json_response(said, status=status, headers={"location": f"/?key={KEY}"})

    server.handle = echo
    async with provider_at(server.url, kind) as provider:
        batch = packed(tmp_path, provider, ["a"], ENDPOINTS[kind], BODY)
        calls = (
            provider.create(batch),
            provider.look("batches/1"),
            provider.cancel("batches/1"),
            provider.find(TAG, 0),
        )
        for call in calls:
            with pytest.raises(BatchError) as caught:
                await call
            assert KEY not in f"{caught.value!r} {caught.value} {vars(caught.value)}"
    assert KEY not in caplog.text


@pytest.mark.parametrize("kind", KINDS)
async def test_looks_at_what_is_gone_say_so(server: BatchServer, kind: str) -> None:
    """A 404 of one batch is no fault of the account; what breaks while looking can be looked at
    again."""
    async with provider_at(server.url, kind) as provider:
        server.handle = says(404, {"error": {"message": "no such batch"}})
        with pytest.raises(BatchGone):
            await provider.look("batches/1")
        for broken in (
            breaks_off,
            says(500, b""),
            says(200, PAGE),
            says(200, {"id": 1, "name": 2}),
            endless,
        ):
            server.handle = broken
            with pytest.raises(TryLater):
                await provider.look("batches/1")


# -- lists -----------------------------------------------------------------------------------------


def page(request: web.Request, rows: list[Any], place: str) -> web.Response:
    body = {
        "data": rows,
        "files": rows,
        "operations": rows,
        "has_more": True,
        "nextPageToken": place,
    }
    return web.json_response(body)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("moves", [False, True])
async def test_a_list_without_an_end_is_left(server: BatchServer, kind: str, moves: bool) -> None:
    """One that comes back to where it was, and one that goes on for ever: both end, and never as
    "not there"."""
    count = 0

    async def handle(request: web.Request) -> web.Response:
        nonlocal count
        count += moves
        return page(
            request,
            [{"id": f"b{count}", "processing_status": "in_progress", "created_at": "x"}],
            f"t{count}",
        )

    server.handle = handle
    async with provider_at(server.url, kind) as provider:
        with pytest.raises(AccountStopped, match="pages"):
            await provider.find(TAG, 0)
    assert len(server.asked) <= 401


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "rows", [7, "x", None, [1, None, [], "a"], [{"id": 3, "metadata": 4, "created_at": {}}], {}]
)
async def test_a_list_of_anything_is_no_defect(server: BatchServer, kind: str, rows: Any) -> None:
    """Wrong types in a list are an error of the contract, or rows that are not the one that is
    looked for."""
    server.handle = says(200, {"data": rows, "operations": rows, "files": rows, "has_more": True})
    async with provider_at(server.url, kind) as provider:
        try:
            found = await provider.find(TAG, 0)
        except (TryLater, Unclear):
            found = None
    assert found is None


# -- outputs ---------------------------------------------------------------------------------------


def output(number: int) -> bytes:
    return b'{"custom_id":"id-%d","response":{"status_code":200,"body":{"n":%d}}}\n' % (
        number,
        number,
    )


WHOLE = b"".join(map(output, range(200)))


def numbers(answers: list[BatchAnswer | UnreadableLine]) -> list[str]:
    return [answer.custom_id for answer in answers if isinstance(answer, BatchAnswer)]


IN_ORDER = [f"id-{number}" for number in range(200)]


def breaking(
    whole: bytes, step: int, *, ranges: bool
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Each connection brings `step` more bytes than the one before, and ends without its end."""
    sent = 0

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        sent += step
        begin = request.http_range.start or 0 if ranges else 0
        response = web.StreamResponse(status=206 if begin else 200)
        response.content_length = len(whole) - begin
        if begin:
            response.headers["Content-Range"] = f"bytes {begin}-{len(whole) - 1}/{len(whole)}"
        await response.prepare(request)
        await response.write(whole[begin:sent])
        return response if sent >= len(whole) else cut(response, request)

    return handle


@pytest.mark.parametrize("ranges", [True, False])
async def test_a_download_goes_on_where_it_broke(
    server: BatchServer, openai: BatchProvider, ranges: bool
) -> None:
    """Each answer comes once, whether the server can begin in the middle or only anew."""
    server.handle = breaking(WHOLE, 3_001, ranges=ranges)
    assert numbers(await all_answers(openai, ENDED)) == IN_ORDER
    assert 3 < len(server.asked) < 10


async def test_lines_in_another_order_are_all_read_again(server: BatchServer) -> None:
    """Where results change their order between two downloads none is missing, and some come
    twice."""
    first = True

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal first
        rows = [
            b'{"custom_id":"%s-%d","result":{"type":"succeeded","message":{}}}\n' % (b"2c9e41ab", n)
            for n in range(200)
        ]
        text = b"".join(rows if first else rows[::-1])
        response = web.StreamResponse()
        response.content_length = len(text)
        await response.prepare(request)
        await response.write(text[:5_000] if first else text)
        is_cut, first = first, False
        return cut(response, request) if is_cut else response

    server.handle = handle
    async with provider_at(server.url, "anthropic") as provider:
        answers = await all_answers(provider, ENDED)
    assert set(numbers(answers)) == {str(number) for number in range(200)}
    assert len(answers) > 200
    assert len(server.asked) == 3  # the second shows the other order, the third begins anew


async def test_an_output_that_is_another_each_time_is_left(server: BatchServer) -> None:
    """Whose lines are never those of the time before is for later, and its answers do not come for
    ever."""
    count = 0

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal count
        count += 1
        response = web.StreamResponse()
        response.content_length = 100_000
        await response.prepare(request)
        await response.write(
            b'{"custom_id":"2c9e41ab-%05d","result":{"type":"expired"}}\n' % count * 100
        )
        return cut(response, request)

    server.handle = handle
    async with provider_at(server.url, "anthropic") as provider:
        with pytest.raises(TryLater):
            await all_answers(provider, ENDED)
    assert count < 20


@pytest.mark.parametrize("status", [500, 200])
async def test_a_download_that_brings_nothing_is_left(
    server: BatchServer, openai: BatchProvider, status: int
) -> None:
    """After a few breaks in a row it is for later, and says how far it came."""
    server.handle = says(500, b"") if status == 500 else breaks_off
    with pytest.raises(TryLater, match="at byte 0 of file-out"):
        await all_answers(openai, ENDED)
    # aiohttp asks once more itself where a connection ends without a word
    assert len(server.asked) in (6, 12)


@pytest.mark.parametrize(
    ("status", "expected"),
    [(404, BatchGone), (401, AccountStopped), (429, TryLater), (302, Astray)],
)
async def test_a_download_that_is_refused(
    server: BatchServer, openai: BatchProvider, status: int, expected: type[BatchError]
) -> None:
    """A refusal has the meaning of any call's, and a redirect is not followed."""
    server.handle = says(status, error("x"), {"location": "/elsewhere"})
    with pytest.raises(expected):
        await all_answers(openai, ENDED)
    assert server.asked == ["GET /v1/files/file-out/content"]


async def test_lines_that_are_none_cost_no_others(
    server: BatchServer, openai: BatchProvider
) -> None:
    """Garbage, blank lines, a line of 64 MB and half a line at the end: every answer between them
    is there."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(output(0) + b"garbage\n\n  \r\n\xff\n" + output(1))
        for _ in range(64):
            await response.write(b"x" * 1_000_000)
        await response.write(b"\n" + output(2) + output(3)[:-20])
        return response

    server.handle = handle
    answers = await all_answers(openai, ENDED)
    assert numbers(answers) == ["id-0", "id-1", "id-2"]
    unreadable = [answer for answer in answers if isinstance(answer, UnreadableLine)]
    assert [answer.line for answer in unreadable] == [2, 5, 7, 9]
    assert "64000001 bytes" in unreadable[2].why


@pytest.mark.parametrize(
    ("begins", "ends", "expected"),
    [
        (
            b'{"id": "batch_req_1", "error": null, "custom_id": "id-7", "response": {"body": "',
            b'"}}\n',
            "id-7",
        ),
        (b'{"response": {"body": "', b'"}, "custom_id": "id-7", "error": null}\n', "id-7"),
        (b'{"response": {"custom_id": "id-7", "body": "', b'"}}\n', None),
        (b'{"response": {"body": "', b'\\"custom_id\\": \\"id-7\\"}"}}\n', None),
        (b'{"id": "' + b"x" * 5_000 + b'", "custom_id": "id-7", "body": "', b'"}\n', None),
    ],
)
async def test_an_answer_that_is_too_long_names_its_document(
    server: BatchServer, openai: BatchProvider, begins: bytes, ends: bytes, expected: str | None
) -> None:
    """Where only short fields stand before or behind its id; what an answer says in its text names
    nothing."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(begins)
        for _ in range(34):
            await response.write(b"x" * 1_000_000)
        await response.write(ends + output(0))
        return response

    server.handle = handle
    too_long, whole = await all_answers(openai, ENDED)
    assert isinstance(too_long, UnreadableLine)
    assert too_long.custom_id == expected
    assert numbers([whole]) == ["id-0"]


async def test_an_output_without_an_end_is_left(
    server: BatchServer, openai: BatchProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch has no more answers than requests: what comes behind them is one unreadable line, and
    is not read."""
    monkeypatch.setattr(openai, "limits", openai.limits._replace(requests=100))

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(output(0) * 50)

    server.handle = handle
    answers = await all_answers(openai, ENDED)
    assert len(numbers(answers)) == 100
    assert isinstance(answers[-1], UnreadableLine)
    assert "the rest is not read" in answers[-1].why


async def test_a_line_without_an_end_is_left(
    server: BatchServer, openai: BatchProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is passed over has a limit, too."""
    monkeypatch.setattr(output_lines, "SKIPPED_BYTES", 40_000_000)
    server.handle = endless
    answers = await all_answers(openai, ENDED)
    assert [type(answer) for answer in answers] == [UnreadableLine]


async def test_a_download_that_stands_still_is_begun_again(
    server: BatchServer, openai: BatchProvider
) -> None:
    """A server that stops in the middle holds its reader for the time of a stall, and no longer."""

    async def handle(request: web.Request) -> web.StreamResponse:
        begin = request.http_range.start or 0
        response = web.StreamResponse(status=206 if begin else 200)
        if begin:
            response.headers["Content-Range"] = f"bytes {begin}-{len(WHOLE) - 1}/{len(WHOLE)}"
        await response.prepare(request)
        await response.write(WHOLE[begin:] if begin else WHOLE[:5_000])
        if not begin:
            await asyncio.Event().wait()
        return response

    server.handle = handle
    assert numbers(await all_answers(openai, ENDED)) == IN_ORDER
    assert len(server.asked) == 2


@pytest.mark.parametrize("given", ["bytes 0-1/2", "nonsense", "bytes */7", ""])
async def test_another_part_than_was_asked_for_is_no_answer(
    server: BatchServer, openai: BatchProvider, given: str
) -> None:
    """A server whose ranges are wrong loses no answer and brings none of another place: it is for
    later."""

    async def handle(request: web.Request) -> web.StreamResponse:
        begin = request.http_range.start or 0
        if not begin:
            response = web.StreamResponse()
            response.content_length = len(WHOLE)
            await response.prepare(request)
            await response.write(WHOLE[:5_000])
            return cut(response, request)
        return web.Response(status=206, headers={"Content-Range": given}, body=b"ab")

    server.handle = handle
    with pytest.raises(TryLater, match="at byte 49"):
        await all_answers(openai, ENDED)


async def test_a_reader_that_stops_leaves_no_connection(
    server: BatchServer, openai: BatchProvider
) -> None:
    """Who closes the answers early closes the download with them."""
    ended = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(WHOLE)
        finally:
            ended.set()

    server.handle = handle
    answers = openai.answers(ENDED)
    assert isinstance(await anext(answers), BatchAnswer)
    await answers.aclose()
    async with asyncio.timeout(5):
        await ended.wait()


# -- what each dialect adds ------------------------------------------------------------------------


async def test_an_upload_is_the_file_itself(
    server: BatchServer, openai: BatchProvider, tmp_path: Path
) -> None:
    """The packed file arrives byte by byte, for batches, under the tag's name."""
    seen: dict[str, Any] = {}

    async def handle(request: web.Request) -> web.Response:
        form = await request.post()
        file = form["file"]
        assert isinstance(file, web.FileField)
        seen.update(
            purpose=form["purpose"],
            name=file.filename,
            text=file.file.read(),
            key=request.headers["Authorization"],
        )
        return web.json_response({"id": "file-1"})

    server.handle = handle
    batch = packed(tmp_path, openai, ["a", "b"], CHAT, BODY)
    assert await openai.upload(batch) == "file-1"
    assert seen == {
        "purpose": "batch",
        "name": f"penstock-{TAG}.jsonl",
        "text": batch.path.read_bytes(),
        "key": f"Bearer {KEY}",
    }


async def test_an_upload_that_nothing_reads_ends(server: BatchServer, tmp_path: Path) -> None:
    """A server that takes connections and reads no bytes does not hold the upload for ever."""
    server.handle = never_answers
    async with provider_at(
        server.url, times=SHORT._replace(call_s=0.1, stall_s=0.1, slowest_bytes_per_s=1e9)
    ) as provider:
        with pytest.raises(Unclear):
            await provider.upload(
                packed(tmp_path, provider, ["a"], CHAT, b'{"x":"' + b"x" * 5_000_000 + b'"}')
            )


async def test_a_batch_is_found_by_its_tag(server: BatchServer, openai: BatchProvider) -> None:
    """On whatever page of the list it is; beyond batches that are older than its create nothing is
    asked."""
    others = [
        {
            **BATCH,
            "id": f"batch_{n}",
            "created_at": 5_000 - n,
            "metadata": {"penstock_batch": "other"},
        }
        for n in range(100)
    ]
    pages = [others[:50], others[50:]]

    async def handle(request: web.Request) -> web.Response:
        if request.path.endswith("/files"):
            return web.json_response({"data": []})
        rows = pages[1] if "after" in request.query else pages[0]
        return web.json_response({"data": rows, "has_more": True})

    server.handle = handle
    assert await openai.find(TAG, since=6_000) is None
    assert len(server.asked) == 1
    pages[1][7]["metadata"] = {"penstock_batch": TAG}
    found = await openai.find(TAG, since=4_900)
    assert found is not None
    assert found.batch_id == pages[1][7]["id"]


async def test_a_server_that_keeps_no_metadata_is_asked_by_the_input(
    server: BatchServer, openai: BatchProvider
) -> None:
    """No other batch has the file that was uploaded for this one."""

    async def handle(request: web.Request) -> web.Response:
        if request.path.endswith("/files"):
            return web.json_response(
                {"data": [{"id": "file-9", "filename": f"penstock-{TAG}.jsonl"}]}
            )
        if request.path.endswith("/batch_2"):
            return web.json_response({**BATCH, "id": "batch_2"})
        return web.json_response(
            {"data": [BATCH, {**BATCH, "id": "batch_2", "input_file_id": "file-9"}]}
        )

    server.handle = handle
    found = await openai.find(TAG, since=0)
    assert found is not None
    assert found.batch_id == "batch_2"


async def test_a_batch_that_failed_says_why(server: BatchServer, openai: BatchProvider) -> None:
    """By line where the provider has lines; and once where it has no words at all."""
    told = {
        "data": [
            {"code": "invalid_json_line", "message": "m", "line": 3},
            {"line": "x", "code": None},
            7,
        ]
    }
    server.handle = says(200, {**BATCH, "status": "failed", "errors": told})
    assert (await openai.look("batch_1")).problems == (
        LineProblem("invalid_json_line", "m", 3),
        LineProblem("failed", "", None),
    )
    server.handle = says(200, {**BATCH, "status": "failed", "errors": None})
    assert len((await openai.look("batch_1")).problems) == 1


async def test_a_batch_that_has_ended_cannot_be_cancelled(
    server: BatchServer, openai: BatchProvider
) -> None:
    """The refusal is no error: the batch is shown as it is."""

    async def handle(request: web.Request) -> web.Response:
        if request.method == "POST":
            return web.json_response(error("bad"), status=400)
        return web.json_response({**BATCH, "status": "completed"})

    server.handle = handle
    assert (await openai.cancel("batch_1")).status == "completed"


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_gone_is_deleted_already(server: BatchServer, kind: str) -> None:
    """Deleting twice is no error."""
    server.handle = says(404, error("gone"))
    async with provider_at(server.url, kind) as provider:
        await provider.delete(
            ENDED._replace(batch_id="batches/1", outputs=("files/a",), file_id="files/b")
        )
    assert len(server.asked) == (1 if kind == "anthropic" else 2)


@pytest.mark.parametrize("count", [1, 2, 3000])
async def test_anthropics_create_carries_the_mark_of_its_tag(
    server: BatchServer, tmp_path: Path, count: int
) -> None:
    """All requests come in one JSON object, under ids that say which batch they belong to, with its
    size said before."""
    seen: dict[str, Any] = {}

    async def handle(request: web.Request) -> web.Response:
        text = await request.read()
        seen.update(
            json.loads(text), size=request.content_length == len(text), headers=request.headers
        )
        return web.json_response(
            {
                "id": "msgbatch_1",
                "processing_status": "in_progress",
                "request_counts": {"processing": 2},
            }
        )

    server.handle = handle
    async with provider_at(server.url, "anthropic") as provider:
        ids = [f"d-{number}" for number in range(count)]
        batch = packed(tmp_path, provider, ids, "/v1/messages", BODY)
        made = await provider.create(batch)
    assert made == BatchSeen("msgbatch_1", "in_progress", False, None)
    assert [request["custom_id"] for request in seen["requests"]] == [
        f"2c9e41ab-{one}" for one in ids
    ]
    assert all(request["params"] == json.loads(BODY) for request in seen["requests"])
    assert seen["size"]
    assert (seen["headers"]["x-api-key"], seen["headers"]["anthropic-version"]) == (
        KEY,
        "2023-06-01",
    )


async def test_anthropics_batch_is_found_when_it_has_ended(server: BatchServer) -> None:
    """Before that nothing can tell, which is Unclear; batches of other hours and other marks are
    not it."""
    rows = [
        {"id": "late", "processing_status": "in_progress", "created_at": "2026-11-22T20:00:00Z"},
        {"id": "ours", "processing_status": "in_progress", "created_at": "2026-11-22T12:00:05Z"},
        {
            "id": "foreign",
            "processing_status": "ended",
            "created_at": "2026-11-22T12:00:00Z",
            "results_url": "x",
        },
        {"id": "old", "processing_status": "in_progress", "created_at": "2026-11-22T10:00:00Z"},
    ]
    results = {
        "ours": b'garbage\n{"custom_id":"2c9e41ab-a","result":{"type":"expired"}}\n',
        "foreign": b'{"custom_id":"x"}\n',
    }

    async def handle(request: web.Request) -> web.Response:
        parts = request.path.split("/")
        if parts[-1] == "results":
            return web.Response(body=results[parts[-2]])
        return web.json_response({"data": rows, "has_more": False})

    server.handle = handle
    since = 1_795_348_800.0  # 2026-11-22T12:00:00Z
    async with provider_at(server.url, "anthropic") as provider:
        with pytest.raises(Unclear, match="1 batches \\(ours"):
            await provider.find(TAG, since)
        rows[1] |= {
            "processing_status": "ended",
            "results_url": "https://elsewhere.example/results",
        }
        found = await provider.find(TAG, since)
        assert found is not None
        assert found.batch_id == "ours"
        rows[1]["id"] = "foreign"
        assert await provider.find(TAG, since) is None


async def test_geminis_upload_sends_the_key_nowhere_else(
    server: BatchServer, tmp_path: Path
) -> None:
    """The address for the bytes comes from the provider, and must be its own."""
    addresses = [f"{server.url}/there?upload_id=1&x=a%2Fb", "http://elsewhere.example/there", ""]
    bytes_of: list[bytes] = []

    async def handle(request: web.Request) -> web.Response:
        if request.path.startswith("/upload"):
            return web.json_response({}, headers={"X-Goog-Upload-URL": addresses.pop(0)})
        bytes_of.append(await request.read())
        return web.json_response({"file": {"name": "files/abc"}})

    server.handle = handle
    async with provider_at(server.url + "/v1beta", "gemini") as provider:
        batch = packed(tmp_path, provider, ["a"], ENDPOINTS["gemini"], BODY)
        assert await provider.upload(batch) == "files/abc"
        for _ in range(2):
            with pytest.raises(AccountStopped, match="another server"):
                await provider.upload(batch)
    assert bytes_of == [batch.path.read_bytes()]
    assert server.asked[1] == "POST /there?upload_id=1&x=a%2Fb"
