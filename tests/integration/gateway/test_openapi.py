"""The OpenAPI document, and schemathesis, which asks a real door what the document promises."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import schemathesis
from doors import door, door_settings, new_key
from hypothesis import HealthCheck, given, settings
from jobs_api import SPEC, Client
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from servers import RedisServer

from penstock_gateway import create_app
from penstock_gateway.direct.fields import checked_body
from penstock_gateway.settings import DirectFields
from penstock_ledger import JobState, JobStore, open_database

EXAMPLES: Final = 8  # of each operation
CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
OURS: Final = ("/v1/jobs", "/v1/schedules", "/v1/notifications", "/v1/keys", "/v1/limits")
SLOW: Final = (
    HealthCheck.too_slow,
    HealthCheck.filter_too_much,
    HealthCheck.data_too_large,
    HealthCheck.large_base_example,
)


class Caller(NamedTuple):
    """An administrator, and what is there for its requests to meet."""

    url: str
    headers: dict[str, str]
    ended_job: str


@pytest.fixture(scope="module")
def caller(
    tmp_path_factory: pytest.TempPathFactory, _shared_redis: RedisServer
) -> Iterator[Caller]:
    """With a key: the first one that is made over HTTP would close a door without any."""
    of_door = door_settings(tmp_path_factory.mktemp("door"), _shared_redis.url)
    secret = new_key(of_door, None, "admin")
    with door(of_door) as url:
        api = Client(url, secret)
        ended = str(api.post("/v1/jobs", {**SPEC, "open": True}).json["id"])
        database = open_database(of_door.database_url)
        JobStore(database).set_state(ended, JobState.CANCELLED, expect=[JobState.RUNNING])
        database.close()
        yield Caller(url, {"authorization": f"Bearer {secret}"}, ended)


@pytest.fixture(scope="module")
def document(caller: Caller) -> Any:
    with urllib.request.urlopen(f"{caller.url}/openapi.json") as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def asked(caller: Caller, document: Any) -> Any:
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=caller.url)
    return schema


def test_a_door_answers_as_its_document_says(asked: Any, caller: Caller) -> None:
    """Answers of jobs, schedules, keys and limits have a status, type and shape that it names, and
    none is a fault, whatever was asked. Other routes are asked in tests/hostile/test_schema.py."""
    found = [found.ok() for found in asked.get_all_operations()]
    ours = [operation for operation in found if operation.path.startswith(OURS)]
    assert len(ours) >= 18
    for operation in ours:
        ask(operation, caller)


def ask(operation: Any, caller: Caller) -> None:
    """Some requests to one operation, the same ones in each run."""
    is_stream = operation.path.endswith("/events")  # of a job that runs it has no end
    job = caller.ended_job if is_stream else open_job(caller, operation.label)

    @given(case=operation.as_strategy())
    @settings(max_examples=EXAMPLES, derandomize=True, database=None, suppress_health_check=SLOW)
    def one(case: Any) -> None:
        if "job" in (case.path_parameters or {}):
            case.path_parameters["job"] = job
        case.call_and_validate(checks=CHECKS, headers=caller.headers)

    one()


def open_job(caller: Caller, label: str) -> str:
    """One of its own for each operation, so that what is asked of it meets a job."""
    body = json.dumps({**SPEC, "open": True, "job": f"probe {label}"[:100]}).encode()
    headers = caller.headers | {"content-type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{caller.url}/v1/jobs", body, headers)
    ) as answer:
        return str(json.load(answer)["id"])


def operations(document: Any) -> Iterator[tuple[str, str, Any]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if path.startswith(OURS):
                yield path, method, operation


def test_every_operation_of_jobs_is_told_whole(document: Any) -> None:
    """Each says what it does and has a tag, an example of its answer, and errors as problem
    details."""
    found = list(operations(document))
    assert len(found) >= 18
    for path, method, operation in found:
        where = f"{method} {path}"
        assert operation["summary"], where
        assert operation["description"], where
        assert operation["tags"] in (["jobs"], ["schedules"], ["limits"], ["keys"]), where
        problem = operation["responses"]["404"]["content"]["application/problem+json"]
        assert problem["schema"]["$ref"] == "#/components/schemas/Problem", where
        assert "422" not in operation["responses"], where
        good = [
            answer for status, answer in operation["responses"].items() if status in ("200", "201")
        ]
        assert all(has_example(document, answer["content"]) for answer in good), where
        if "requestBody" in operation:
            assert has_example(document, operation["requestBody"]["content"]), where
    assert set(document["components"]["securitySchemes"]) == {"bearer", "apiKey"}


def has_example(document: Any, content: Any) -> bool:
    for told in content.values():
        schema = told["schema"]
        options = [schema, *schema.get("anyOf", [])]
        named = [one["$ref"].rpartition("/")[2] for one in options if "$ref" in one]
        if "example" not in told and not any(
            document["components"]["schemas"][name].get("examples") for name in named
        ):
            return False
    return True


def test_calls_that_wait_are_told_with_bodies_that_are_taken(document: Any) -> None:
    """The example of each is one that the door takes; errors are in the dialect of the path."""
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"):
        operation = document["paths"][path]["post"]
        example = operation["requestBody"]["content"]["application/json"]["example"]
        assert checked_body(example, path, DirectFields()) == example
        assert "text/event-stream" in operation["responses"]["200"]["content"]
    for path, name in (("/v1/messages", "Anthropic"), ("/v1/responses", "OpenAI")):
        content = document["paths"][path]["post"]["responses"]["401"]["content"]
        named = content["application/json"]["schema"]["$ref"]
        assert named == f"#/components/schemas/{name}Error"


# Method names of clients that are generated from the document: one that is here is not changed, and
# a new route adds its own.
OPERATIONS: Final = {
    "GET /health": "get_health",
    "POST /v1/files": "create_file",
    "GET /v1/files": "list_files",
    "GET /v1/files/{file_id}": "retrieve_file",
    "DELETE /v1/files/{file_id}": "delete_file",
    "GET /v1/files/{file_id}/content": "read_file_content",
    "HEAD /v1/files/{file_id}/content": "measure_file_content",
    "POST /v1/batches": "create_batch",
    "GET /v1/batches": "list_batches",
    "GET /v1/batches/{batch_id}": "retrieve_batch",
    "POST /v1/batches/{batch_id}/cancel": "cancel_batch",
    "GET /v1/batches/{batch_id}/output": "read_batch_output",
    "GET /v1/batches/{batch_id}/errors": "read_batch_errors",
    "POST /v1/messages/batches": "create_message_batch",
    "GET /v1/messages/batches": "list_message_batches",
    "GET /v1/messages/batches/{batch_id}": "retrieve_message_batch",
    "DELETE /v1/messages/batches/{batch_id}": "delete_message_batch",
    "POST /v1/messages/batches/{batch_id}/cancel": "cancel_message_batch",
    "GET /v1/messages/batches/{batch_id}/results": "read_message_batch_results",
    "POST /v1/chat/completions": "create_chat_completion",
    "POST /v1/completions": "create_completion",
    "POST /v1/embeddings": "create_embeddings",
    "POST /v1/messages": "create_message",
    "POST /v1/responses": "create_response",
    "GET /v1/batch/stats": "show_batch_stats",
    "POST /v1/batch/sync": "answer_prompts",
    "GET /v1/models": "list_models",
    "GET /v1/models/{model}": "retrieve_model",
    "POST /v1/jobs": "submit_job",
    "GET /v1/jobs": "list_jobs",
    "POST /v1/jobs/preview": "preview_job",
    "GET /v1/jobs/{job}": "retrieve_job",
    "DELETE /v1/jobs/{job}": "purge_job",
    "GET /v1/jobs/{job}/extrapolation": "read_job_extrapolation",
    "GET /v1/jobs/{job}/dead-letter-lines": "export_dead_letters",
    "PATCH /v1/jobs/{job}": "change_job",
    "GET /v1/jobs/{job}/report": "read_job_report",
    "POST /v1/jobs/{job}/pause": "pause_job",
    "POST /v1/jobs/{job}/resume": "resume_job",
    "POST /v1/jobs/{job}/cancel": "cancel_job",
    "POST /v1/jobs/{job}/move": "move_job",
    "POST /v1/jobs/{job}/replay": "replay_dead_letters",
    "GET /v1/jobs/{job}/results": "read_job_results",
    "GET /v1/jobs/{job}/dead-letters": "list_dead_letters",
    "GET /v1/jobs/{job}/dead-letters/{doc_id}": "retrieve_dead_letter",
    "POST /v1/jobs/{job}/items": "push_items",
    "POST /v1/jobs/{job}/seal": "seal_job",
    "GET /v1/jobs/{job}/events": "follow_job",
    "GET /v1/limits": "list_limits",
    "POST /v1/schedules": "create_schedule",
    "GET /v1/schedules": "list_schedules",
    "GET /v1/schedules/{schedule}": "retrieve_schedule",
    "DELETE /v1/schedules/{schedule}": "delete_schedule",
    "POST /v1/schedules/{schedule}/pause": "pause_schedule",
    "POST /v1/schedules/{schedule}/resume": "resume_schedule",
    "POST /v1/notifications/{schedule}": "notify_schedule",
    "POST /v1/keys": "create_key",
    "GET /v1/keys": "list_keys",
    "GET /v1/keys/{key_id}": "retrieve_key",
    "DELETE /v1/keys/{key_id}": "revoke_key",
    "POST /v1/webhooks": "create_webhook",
    "GET /v1/webhooks": "list_webhooks",
    "GET /v1/webhooks/{webhook_id}": "retrieve_webhook",
    "DELETE /v1/webhooks/{webhook_id}": "delete_webhook",
    "POST /v1/webhooks/{webhook_id}/rotate": "rotate_webhook_secret",
    "POST /v1/webhooks/{webhook_id}/enable": "enable_webhook",
    "POST /v1/webhooks/{webhook_id}/test": "test_webhook",
    "GET /v1/webhooks/{webhook_id}/deliveries": "list_webhook_deliveries",
    "POST /v1/webhooks/{webhook_id}/deliveries/{event_id}/retry": "retry_webhook_delivery",
}


def test_operations_have_names_that_stay(tmp_path: Path) -> None:
    """Each operation id is one of the list, which is what a code generator calls its methods; none
    comes twice."""
    document = create_app(door_settings(tmp_path)).openapi()
    found = {
        f"{method.upper()} {path}": operation["operationId"]
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert found == OPERATIONS
    assert len(set(found.values())) == len(found)
    assert all(name.isidentifier() for name in found.values())


def test_the_document_is_made_without_a_server(tmp_path: Path) -> None:
    """The document depends on no database, so that it can be written into the docs."""
    app = create_app(door_settings(tmp_path))
    assert app.openapi() is app.openapi()
    assert not (tmp_path / "ledger.db").exists()
