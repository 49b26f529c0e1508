"""One object of each kind that a path of the HTTP doors may name, made for a tenant.

A room with a new kind adds its maker."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Table, insert

from penstock_gateway.jobs.names import stored_key
from penstock_gateway.middleware import new_id
from penstock_gateway.settings import GatewaySettings
from penstock_ledger import ApiKeyStore, Database, NewApiKey
from penstock_ledger.sql.tables import door_batches, door_files, webhook_endpoints
from penstock_producer import Producer

Maker = Callable[[Database, GatewaySettings, str], str]


def file(database: Database, settings: GatewaySettings, tenant: str) -> str:
    file_id = new_id("file")
    settings_folder = settings.files_folder
    assert settings_folder is not None
    settings_folder.mkdir(exist_ok=True)
    (settings_folder / file_id).write_bytes(b"{}\n")
    _insert(
        database,
        door_files,
        file_id=file_id,
        tenant=tenant,
        filename="a.jsonl",
        purpose="batch",
        bytes=3,
        sha256="0" * 64,
        place=file_id,
    )
    return file_id


def batch(database: Database, settings: GatewaySettings, tenant: str) -> str:
    return _batch(database, tenant, "openai", new_id("batch"))


def message_batch(database: Database, settings: GatewaySettings, tenant: str) -> str:
    return _batch(database, tenant, "anthropic", new_id("msgbatch"))


def job(database: Database, settings: GatewaySettings, tenant: str) -> str:
    with Producer(settings, database=database) as producer:
        return producer.open_job({"model": "m", "prompt": "{text}", "tenant": tenant}).job_id


def webhook(database: Database, settings: GatewaySettings, tenant: str) -> str:
    endpoint_id = new_id("we")
    _insert(
        database,
        webhook_endpoints,
        endpoint_id=endpoint_id,
        tenant=tenant,
        url="https://hooks.example/x",
        secret="whsec_" + "a" * 32,
        events="batch.completed",
    )
    return endpoint_id


def api_key(database: Database, settings: GatewaySettings, tenant: str) -> str:
    return ApiKeyStore(database).create(NewApiKey("theirs", tenant, frozenset({"read"})))[0]


def schedule(database: Database, settings: GatewaySettings, tenant: str, **options: Any) -> str:
    spec = {"model": "m", "prompt": "{text}", "tenant": tenant}
    source = "s3://corpora/in/" if options else "s3://corpora/in.jsonl"
    with Producer(settings, database=database) as producer:
        name, owner = secrets.token_hex(8), stored_key(tenant, "")
        return producer.schedules.add(
            name, "0 0 1 1 *", source, spec, owned_by=owner, **options
        ).schedule_id


def notified_schedule(database: Database, settings: GatewaySettings, tenant: str) -> str:
    return schedule(database, settings, tenant, new_files=True, events="webhook")


# The beginning of a path -> what its first parameter names. The longest that fits counts.
MAKERS: Mapping[str, Maker] = {
    "/v1/files/": file,
    "/v1/batches/": batch,
    "/v1/messages/batches/": message_batch,
    "/v1/jobs/": job,
    "/v1/webhooks/": webhook,
    "/v1/keys/": api_key,
    "/v1/schedules/": schedule,
    "/ui/schedules/": schedule,
    "/v1/notifications/": notified_schedule,
    "/ui/jobs/": job,
}
# Names of things that belong to no tenant, and are the same for all.
OF_NO_TENANT = ("/ui/static/", "/v1/models/")


def _batch(database: Database, tenant: str, kind: str, batch_id: str) -> str:
    _insert(
        database,
        door_batches,
        batch_id=batch_id,
        kind=kind,
        tenant=tenant,
        endpoint="/v1/chat/completions",
        input_file_id=new_id("file"),
        window_s=86_400.0,
        state="in_progress",
        counts='{"total": 1, "completed": 0, "failed": 0}',
        expires_at=time.time() + 86_400,
    )
    return batch_id


def _insert(database: Database, table: Table, **values: object) -> None:
    values = {"created_at": time.time(), **values}
    database.write(lambda connection: connection.execute(insert(table).values(values)))
