"""What is said of a job's options before it is submitted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

_JSON_OBJECT = b"json_object"

if TYPE_CHECKING:
    from penstock_producer.job.spec import JobSpec
    from penstock_producer.sources import Document


def asked_form(spec: JobSpec, documents: Iterable[Document]) -> Iterator[str]:
    """What requests say of the form of their answers; nothing where the job does not care."""
    told = spec.asked_format
    if spec.response_schema is None and told.format is None:
        return
    yield told.in_words
    is_loose = told.format is not None and told.format["type"] == "json_object"
    if is_loose and any(
        b"json" not in document.body.replace(_JSON_OBJECT, b"").lower() for document in documents
    ):
        yield (
            "OpenAI refuses json_object where no message has the word JSON: say in the prompt "
            "which JSON is wanted"
        )


def token_limits(spec: JobSpec) -> Iterator[str]:
    """What counts the tokens of limits in tokens; nothing where there are none."""
    if spec.tokens_counted is not None:
        yield f"tokens of --truncate are counted {spec.tokens_counted}"


def digest_of(examples: Sequence[Mapping[str, Any]]) -> str:
    """Tells one file of examples from another, however it is written."""
    return hashlib.sha256(json.dumps(examples, sort_keys=True).encode()).hexdigest()
