"""Check answers against the JSON schema that a job asked for."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import jsonschema
import orjson

from penstock_workers.flight import Flight
from penstock_workers.judge import Failure, Reply

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
        error = next(self._validator(flight.job.job_id, schema).iter_errors(value), None)
        if error is None:
            return reply
        return Failure("schema_mismatch", f"{error.json_path}: {error.message}"[:500], reply.status)

    def _validator(self, job_id: str, schema: dict[str, Any]) -> Any:
        validator = self._validators.get(job_id)
        if validator is None:
            validator = self._validators[job_id] = jsonschema.validators.validator_for(schema)(schema)
            if len(self._validators) > VALIDATORS_KEPT:
                self._validators.popitem(last=False)
        return validator
