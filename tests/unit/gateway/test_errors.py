"""What callers of the HTTP doors are answered when the producer or the ledger refuses something."""

from __future__ import annotations

import inspect
import json
from types import ModuleType

import pytest
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import penstock_ledger
import penstock_producer
from penstock_gateway.errors import ERRORS, answer_to, refused_for
from penstock_gateway.refused import Refused
from penstock_ledger import DatabaseUnavailable, JobConflict, JobNotFound, PenstockError
from penstock_producer import Problem, SourceError, SpecError

SAID = "a faulty /var/lib/secret of another tenant"


def exported(package: ModuleType) -> list[type[PenstockError]]:
    found = [getattr(package, name) for name in vars(package)["__all__"]]
    return [one for one in found if inspect.isclass(one) and issubclass(one, PenstockError)]


@pytest.mark.parametrize(
    "kind", sorted({*exported(penstock_ledger), *exported(penstock_producer)}, key=str)
)
def test_every_error_has_a_row(kind: type[PenstockError]) -> None:
    """Each error that the producer and the ledger export is in the table itself: none is a fault of
    the server by oversight."""
    assert kind in ERRORS


def test_no_row_is_of_an_error_that_is_gone() -> None:
    """The table names exported errors only."""
    assert ERRORS.keys() <= {*exported(penstock_ledger), *exported(penstock_producer)}


@pytest.mark.parametrize("kind", sorted(ERRORS, key=str))
def test_faults_of_the_server_are_not_shown(kind: type[PenstockError]) -> None:
    """What a caller cannot change is said without the words of the error, which may name hosts and
    files."""
    error = kind.__new__(kind)
    Exception.__init__(error, SAID)
    if ERRORS[kind].status >= 500:
        refused = refused_for(error)
        assert SAID not in refused.message
        assert (refused.status == 503) == ("retry-after" in (refused.headers or {}))


def test_a_field_of_a_spec_is_named() -> None:
    """400 with the field as clients of these APIs write it, and the code of its fault."""
    problem = Problem("invalid_type", "/params/max_tokens", "'10' is a string", "give a number")
    refused = refused_for(SpecError([problem]))
    assert (refused.status, refused.param, refused.code) == (
        400,
        "params.max_tokens",
        "invalid_type",
    )


def test_each_error_has_its_status() -> None:
    """404 for what is not there, 409 for what is there otherwise, 400 for content, 503 for a store
    that is away."""
    assert refused_for(JobNotFound("job_x")).status == 404
    assert refused_for(JobConflict("key", "job_x", ["prompt was 'secret'"])).status == 409
    assert "secret" not in refused_for(JobConflict("key", "job_x", ["prompt was 'secret'"])).message
    assert refused_for(SourceError("empty_source", "it is empty")).code == "empty_source"
    away = refused_for(DatabaseUnavailable("db.internal:5432/x", "refused"))
    assert (away.status, "db.internal" in away.message) == (503, False)


def test_errors_of_the_framework_have_the_same_shape() -> None:
    """A field that the framework refuses is named without its value; a bare exception says nothing
    of itself."""
    fault = {
        "type": "missing",
        "loc": ("body", "messages"),
        "msg": "Field required",
        "input": {"x": SAID},
    }
    refused = refused_for(RequestValidationError([fault]))
    assert (refused.status, refused.param, refused.code) == (
        400,
        "messages",
        "missing_required_parameter",
    )
    assert SAID not in refused.message
    assert refused_for(HTTPException(405, "Method Not Allowed", {"allow": "GET"})).headers == {
        "allow": "GET"
    }
    assert "/openapi.json" in refused_for(HTTPException(404)).message
    assert (
        refused_for(ValueError(SAID)).status,
        SAID in refused_for(ValueError(SAID)).message,
    ) == (500, False)


def test_one_error_has_four_shapes() -> None:
    """OpenAI's, Anthropic's, problem details and a page, whose text is escaped."""
    refused = Refused(404, "No such <b>file</b>", code="not_found", param="id")
    openai = json.loads(bytes(answer_to(refused, "/v1/files/x", "req_1").body))
    assert openai == {
        "error": {
            "message": refused.message,
            "type": "invalid_request_error",
            "param": "id",
            "code": "not_found",
        }
    }
    anthropic = json.loads(bytes(answer_to(refused, "/v1/messages/batches/x", "req_1").body))
    assert anthropic == {
        "type": "error",
        "request_id": "req_1",
        "error": {"type": "not_found_error", "message": refused.message},
    }
    problem = json.loads(bytes(answer_to(refused, "/v1/jobs/x", "req_1").body))
    assert (problem["status"], problem["title"], problem["detail"]) == (
        404,
        "Not Found",
        refused.message,
    )
    page = bytes(answer_to(refused, "/ui/x", "req_1").body).decode()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
