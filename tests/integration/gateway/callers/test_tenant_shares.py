"""Tenants beside each other at one door: what each may hold, whose a batch is, and names that never
meet."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import openai
import pytest
from batch_door import as_jsonl, chat
from doors import Answer, asked, connected, door, door_settings, new_key, received
from fleet import until

from penstock_gateway.backend import Backend
from penstock_gateway.callers.admission import Shares
from penstock_gateway.refused import Refused
from penstock_gateway.settings import BatchFields, GatewaySettings
from penstock_producer import JobConflict, Producer, SpecError

SPEC = {"model": "m", "prompt": "{text}"}
FILE_BYTES = 20_000  # of one tenant
SOON_S = 15.0


class World(NamedTuple):
    settings: GatewaySettings
    url: str
    greedy: str  # keys
    polite: str
    operator: str
    plain: str  # of no tenant, without the scope admin

    def client(self, secret: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=secret, max_retries=0)

    def post(self, secret: str, path: str, body: Any, **headers: str) -> Answer:
        data = json.dumps(body).encode()
        return asked(
            f"{self.url}{path}",
            data,
            authorization=f"Bearer {secret}",
            content_type="application/json",
            **headers,
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    batches = BatchFields(max_requests=3, interval_s=0.05)
    folder = tmp_path_factory.mktemp("door")
    settings = door_settings(
        folder,
        tenant_streams=2,
        tenant_uploads=1,
        tenant_reads=1,
        tenant_file_bytes=FILE_BYTES,
        batches=batches,
    )
    settings = settings.model_copy(update={"source_roots": [str(folder)]})
    scopes = ("read", "write", "infer")
    greedy, polite, plain = (
        new_key(settings, tenant, *scopes) for tenant in ("greedy", "polite", None)
    )
    with door(settings) as url:
        yield World(settings, url, greedy, polite, new_key(settings, None, "admin"), plain)


# -- what a tenant may hold ------------------------------------------------------------------------


def test_a_tenant_follows_so_many_jobs_at_once(world: World) -> None:
    """The next stream is a 429 that names the setting; another tenant follows its own, and one that
    ends makes room."""
    job = {
        secret: world.post(secret, "/v1/jobs", {"open": True} | SPEC).content["id"]
        for secret in (world.greedy, world.polite)
    }
    with contextlib.ExitStack() as open_ones:

        def follow(secret: str) -> http.client.HTTPResponse:
            connection = http.client.HTTPConnection(urlsplit(world.url).netloc, timeout=10)
            open_ones.callback(connection.close)
            connection.request(
                "GET",
                f"/v1/jobs/{job[secret]}/events",
                headers={"authorization": f"Bearer {secret}"},
            )
            return connection.getresponse()

        held = [follow(world.greedy) for _ in range(2)]
        refused = follow(world.greedy)
        told = json.loads(refused.read())
        assert (refused.status, refused.headers["retry-after"], told["code"]) == (
            429,
            "30",
            "too_many_at_once",
        )
        assert "gateway.tenant_streams" in told["detail"]
        assert follow(world.polite).status == 200
        held[0].close()
        open_ones.pop_all().close()
        until(lambda: follow(world.greedy).status == 200, SOON_S, "its share is free again")


def test_a_tenant_uploads_so_many_files_at_once(world: World) -> None:
    """While one is on its way the next is a 429 in OpenAI's shape; another tenant uploads, and it
    does again when that ended."""
    begun = (
        b"POST /v1/files HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer "
        b"%b\r\ncontent-length: 9000\r\n"
        b"content-type: multipart/form-data; boundary=b\r\n\r\n--b\r\n"
        b'content-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n{}\n'
    ) % world.greedy.encode()
    files = Path(world.settings.gateway.files)
    with connected(world.url) as connection:
        connection.sendall(begun)
        until(lambda: list(files.glob("*.part")), SOON_S, "the upload is under way")
        with pytest.raises(openai.RateLimitError) as refused:
            upload(world.client(world.greedy), 10)
        assert refused.value.code == "too_many_at_once"
        assert "gateway.tenant_uploads" in refused.value.message
        upload(world.client(world.polite), 10)
        connection.sendall(b"x" * 9_000)
        assert received(connection).startswith(b"HTTP/1.1 400")
    upload(world.client(world.greedy), 10)


def test_files_of_a_tenant_take_so_much_and_no_more(world: World) -> None:
    """A 429 that clients do not try again; what is removed makes room, and another tenant's files
    are not counted."""
    client = world.client(world.greedy)
    for file in client.files.list():
        client.files.delete(file.id)
    first = upload(client, FILE_BYTES - 1_000)
    for size in (1_001, 2 * FILE_BYTES):
        with pytest.raises(openai.RateLimitError) as refused:
            upload(client, size)
        assert (refused.value.code, refused.value.type) == (
            "storage_quota_exceeded",
            "insufficient_quota",
        )
        assert "gateway.tenant_file_bytes" in refused.value.message
        assert refused.value.response.headers["x-should-retry"] == "false"
    assert len(list(client.files.list())) == 1, "nothing stays of what was refused"
    upload(world.client(world.polite), FILE_BYTES // 2)
    upload(world.client(world.operator), 2 * FILE_BYTES)
    client.files.delete(first.id)
    upload(client, FILE_BYTES - 1_000)


async def test_a_tenant_reads_so_many_sources_at_once(tmp_path: Path) -> None:
    """Its next one is refused while another tenant's is read; the operator has no share.

    All shares are given back."""
    backend = Backend(door_settings(tmp_path, tenant_reads=1))
    shares = backend.part(Shares)
    with shares.held("reads", "greedy"), shares.held("reads", "polite"):
        with (
            pytest.raises(Refused, match=r"gateway\.tenant_reads") as refused,
            shares.held("reads", "greedy"),
        ):
            pytest.fail("it was let in")
        assert (refused.value.status, refused.value.headers) == (429, {"retry-after": "5"})
        with shares.held("reads", None), shares.held("reads", None):
            pass
    with shares.held("reads", "greedy"):
        pass
    with shares.upload("greedy", 100) as one, shares.upload("greedy", 100) as other:
        one.grow_to(60)
        with pytest.raises(Refused):
            other.grow_to(41)
        other.grow_to(40)
    with shares.upload("greedy", 100) as again:
        again.grow_to(100)
    # that a file was made of meanwhile takes its room, and what was refused does not
    with shares.upload("greedy", 100) as late:
        with shares.upload("greedy", 100) as made, shares.upload("polite", 100) as others:
            made.grow_to(60)
            others.grow_to(100)
        with contextlib.suppress(ConnectionError), shares.upload("greedy", 100) as gone:
            gone.grow_to(40)
            raise ConnectionError
        with pytest.raises(Refused):
            late.grow_to(41)
        late.grow_to(40)
    await backend.close()


# -- batches ---------------------------------------------------------------------------------------


def test_a_batch_has_no_more_requests_than_the_door_takes(world: World) -> None:
    """Its validation fails in OpenAI's shape, with a sentence that says what to do; as many as may
    be are taken."""
    client = world.client(world.polite)
    for number, code in ((4, "too_many_tasks"), (3, None)):
        file = upload(client, 0, [chat(n) for n in range(number)])
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        until(partial(is_not, "validating", client, batch.id), SOON_S, "it is validated")
        looked = client.batches.retrieve(batch.id)
        if code is None:
            assert (looked.status, looked.request_counts.total if looked.request_counts else 0) == (
                "in_progress",
                3,
            )
            continue
        assert (looked.status, looked.output_file_id, looked.error_file_id) == (
            "failed",
            None,
            None,
        )
        assert looked.errors is not None
        assert looked.errors.object == "list"
        (error,) = looked.errors.data or []
        assert (error.code, error.line, error.param) == (code, None, None)
        assert error.message == (
            "The input file has more requests than the 3 that one batch may have; use several "
            "batches."
        )


def test_an_operator_makes_a_batch_for_a_tenant(world: World) -> None:
    """By `penstock.tenant`, of a file of either: the batch, its job and its webhooks are the
    tenant's. Others are refused."""
    operator, polite = world.client(world.operator), world.client(world.polite)
    for owner in (operator, polite):
        file = upload(owner, 0, [chat(0)])
        made = operator.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"penstock.tenant": "polite"},
        )
        until(partial(is_not, "validating", polite, made.id), SOON_S, "it is a job")
        with Producer(world.settings) as producer:
            assert producer.status(made.id).job.spec["tenant"] == "polite"
        with pytest.raises(openai.NotFoundError):
            world.client(world.greedy).batches.retrieve(made.id)
    own = upload(polite, 0, [chat(0)])
    for secret in (world.polite, world.greedy, world.plain):
        with pytest.raises(openai.PermissionDeniedError) as refused:
            world.client(secret).batches.create(
                input_file_id=own.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                metadata={"penstock.tenant": "polite"},
            )
        assert (refused.value.param, refused.value.code) == (
            "metadata.penstock.tenant",
            "not_allowed",
        )
    foreign = upload(world.client(world.greedy), 0, [chat(0)])
    made = operator.batches.create(
        input_file_id=foreign.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"penstock.tenant": "polite"},
    )
    until(partial(is_not, "validating", polite, made.id), SOON_S, "it is validated")
    assert polite.batches.retrieve(made.id).status == "failed", (
        "the file of a third tenant is not there"
    )
    with pytest.raises(openai.BadRequestError) as bad:
        operator.batches.create(
            input_file_id=own.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"penstock.tenant": "no tenant\n"},
        )
    assert bad.value.param == "metadata.penstock.tenant"


# -- names -----------------------------------------------------------------------------------------


def test_keys_of_jobs_never_meet_across_tenants(world: World) -> None:
    """Whatever slashes a key has, and at every door: each caller has a job of its own under it, and
    finds that one."""
    keys = (
        "night",
        "polite/night",
        "greedy/night",
        "direct/polite/chat.completions/default/api/2026-11-23T04",
    )
    made: dict[tuple[str, str], str] = {}
    for secret in (world.greedy, world.polite, world.operator):
        for key in keys:
            answer = world.post(secret, "/v1/jobs", {"open": True, "job": key} | SPEC)
            assert answer.status == 201, answer.body
            assert answer.content["job"] == key
            made[secret, key] = answer.content["id"]
    assert len(set(made.values())) == len(made)
    for secret in (world.greedy, world.polite, world.operator):
        found = asked(f"{world.url}/v1/jobs/night", authorization=f"Bearer {secret}")
        assert found.content["id"] == made[secret, "night"]
    refused = world.post(world.operator, "/v1/jobs", {"open": True, "job": "@polite/night"} | SPEC)
    assert (refused.status, refused.content["errors"][0]["pointer"]) == (400, "/job_key")
    with Producer(world.settings) as producer:
        for tenant in (None, "greedy"):
            with pytest.raises(SpecError, match="is no key of this job's tenant"):
                producer.open_job(SPEC | {"tenant": tenant}, job_key="@polite/night")
        assert (
            producer.open_job(SPEC | {"tenant": "polite"}, job_key="@polite/night").job_id
            == made[world.polite, "night"]
        )
        with pytest.raises(JobConflict):
            producer.open_job(SPEC | {"tenant": "polite", "model": "n"}, job_key="@polite/night")


def is_not(status: str, client: openai.OpenAI, batch_id: str) -> bool:
    return client.batches.retrieve(batch_id).status != status


def upload(client: openai.OpenAI, size: int, lines: list[Any] | None = None) -> Any:
    content = as_jsonl(lines) if lines is not None else b"x" * size
    return client.files.create(file=("in.jsonl", io.BytesIO(content)), purpose="batch")
