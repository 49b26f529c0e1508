"""Check answers against the JSON schema that a job asked for."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import orjson
from jsonschema.validators import validator_for

from penstock_workers.flight import Flight
from penstock_workers.judge import DETAIL_CHARS, Failure, Reply

VALIDATORS_KEPT = 100  # compiled schemas; one per job that has one


class SchemaChecks:
    """Compiled validators, one per job."""

    def __init__(self) -> None:
        self._validators: OrderedDict[str, Any] = OrderedDict()

    def check(self, flight: Flight, reply: Reply) -> Failure | Reply:
        """The reply itself, or `schema_mismatch` saying where it differs."""
        schema = flight.job.spec.response_schema
        if schema is None:
            return reply
        try:
            value = orjson.loads(reply.content or "")
        except orjson.JSONDecodeError as error:
            return Failure("schema_mismatch", f"the answer is not JSON: {error}", reply.status)
        fault = next(self._validator(flight.job.job_id, schema).iter_errors(value), None)
        if fault is None:
            return reply
        return Failure("schema_mismatch", f"{fault.json_path}: {fault.message}"[:DETAIL_CHARS], reply.status)

    def _validator(self, job_id: str, schema: dict[str, Any]) -> Any:
        validator = self._validators.get(job_id)
        if validator is None:
            validator = self._validators[job_id] = validator_for(schema)(schema)
            if len(self._validators) > VALIDATORS_KEPT:
                self._validators.popitem(last=False)
        return validator
