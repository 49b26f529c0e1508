"""The items of a job may take the answers of others whose requests are equal.

Pure."""

from __future__ import annotations

import hashlib
import re
from binascii import b2a_base64
from dataclasses import dataclass
from typing import Any, Final

import orjson

from penstock_ledger import Asked, RequestName, keys
from penstock_producer.job.endpoints import UPLOAD_BODY_BYTES
from penstock_producer.job.repeats import CACHE_MAX_S, answers_alike
from penstock_producer.job.spec import JobSpec
from penstock_workers.settings import ProviderSettings

SAME_REQUEST: Final = "same_request"  # why an item was put off: an equal request is on its way
REQUEST_BYTES_MAX: Final = 1024 * 1024
"""Larger requests are always sent: reading one as JSON holds up all other items for
milliseconds."""
JOB_S: Final = 7 * 86_400
"""How old an answer of the job itself may be where no other age is said."""
JOB_IDLE_S: Final = 86_400
"""The book of a job in which nothing happens is forgotten after a day; a tenant's when its last
answer is too old."""

_VERSION: Final = 1  # of the digest: what is hashed, and how
_BEYOND_DOUBLES: Final = re.compile(rb"\d{16}")  # numbers of which a reader may drop digits


@dataclass(frozen=True, slots=True)
class ReusePolicy:
    """The reuse of answers in one job."""

    book: str
    idle_s: int
    oldest_s: float
    always: bool
    across_jobs: bool
    endpoint: str
    most_bytes: int  # of a request that is compared: files are compared whatever their size
    same: bytes  # what equal requests have in common beside their bodies

    def asked(self, body: bytes) -> Asked | None:
        """Return the request by its name; None where this one is sent in any case."""
        if len(body) > self.most_bytes:
            return None
        try:
            fields = orjson.loads(body)
        except orjson.JSONDecodeError:
            return None
        if not isinstance(fields, dict) or not self._may_be_shared(fields):
            return None
        exact = (
            body
            if _BEYOND_DOUBLES.search(body)
            else orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
        )
        digest = (
            b2a_base64(hashlib.sha256(self.same + exact).digest(), newline=False)
            .decode()
            .rstrip("=")
        )
        return Asked(RequestName(self.book, digest), self.oldest_s, self.idle_s)

    def _may_be_shared(self, fields: dict[str, Any]) -> bool:
        # answered by whatever model the next worker hosts
        if self.across_jobs and not fields.get("model"):
            return False
        return self.always or answers_alike(self.endpoint, fields)


def policy_of(
    job_id: str, spec: JobSpec, provider: ProviderSettings, *, across_tenants: bool
) -> ReusePolicy | None:
    """Return how answers are reused in a job; None for jobs whose requests are all sent."""
    if not spec.reuses_answers:
        return None
    across_jobs = spec.cache_s is not None
    lane = spec.lane if spec.lanes is None else (spec.lane, *spec.lanes)
    same = (
        _VERSION,
        lane,
        spec.provider,
        provider.base_url,
        spec.endpoint,
        spec.response_schema,
        spec.postprocess,
        spec.on_overflow,
        spec.embedding_dtype,
        spec.fallback,
        spec.fallback_on,
        # later options: jobs without them take the answers of earlier releases
        *filter(None, (spec.routes, spec.escalate, spec.degrade)),
    )
    return ReusePolicy(
        book=keys.answers_of_tenant(None if across_tenants else spec.tenant or "")
        if across_jobs
        else keys.answers_of_job(job_id),
        idle_s=round(CACHE_MAX_S) if across_jobs else JOB_IDLE_S,
        oldest_s=JOB_S if spec.cache_s is None else spec.cache_s,
        always=spec.dedup == "always",
        across_jobs=across_jobs,
        endpoint=spec.endpoint,
        most_bytes=UPLOAD_BODY_BYTES
        if spec.image_fields or spec.audio_fields
        else REQUEST_BYTES_MAX,
        same=hashlib.sha256(orjson.dumps(same, option=orjson.OPT_SORT_KEYS)).digest(),
    )
