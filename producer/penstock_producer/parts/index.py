"""Which part objects of a job's results count, in which order, and up to where they go:
`parts.json` beside them.

It is replaced by one request, after the part that it names is there. So whatever a process that
dies leaves behind, the index names whole parts without a gap between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import orjson

from penstock_producer.bucket.place import ABSENT, Place
from penstock_producer.errors import SinkError

__all__ = ["INDEX_NAME", "Index", "Part"]

INDEX_NAME: Final = "parts.json"
# A part is two PUTs, with the index; so one PUT is for 200 results or more.
RESULTS_MIN: Final = 400
# A part has at least this share of all that came before it, so that a job of a hundred million has
# some hundred parts.
SHARE: Final = 50
_VERSION: Final = 1


class Part(NamedTuple):
    """Output lines in one object."""

    name: str
    results: int
    bytes: int
    etag: str


@dataclass(frozen=True, slots=True)
class Index:
    """Of one job.

    ``etag`` is that of the object it was read from, or written to; "" where there is none yet."""

    job_id: str
    parts: tuple[Part, ...] = ()
    cursor: str | None = None  # behind the last result of the last part
    etag: str = ""

    @property
    def results(self) -> int:
        return sum(part.results for part in self.parts)

    def is_due(self, results: int) -> bool:
        """Whether a job with so many results has enough of them for another part."""
        return results - self.results >= max(RESULTS_MIN, self.results // SHARE)

    @classmethod
    def read(cls, bucket: Place, job_id: str) -> Self:
        """Raises SinkError."""
        found = bucket.read(INDEX_NAME)
        if found is None:
            return cls(job_id)
        content, etag = found
        try:
            kept: Any = orjson.loads(content)
            if kept["version"] != _VERSION or kept["job"] != job_id:
                raise ValueError(f"it is of version {kept['version']}, job {kept['job']}")
            parts = tuple(
                Part(one["name"], int(one["results"]), int(one["bytes"]), one["etag"])
                for one in kept["parts"]
            )
            return cls(job_id, parts, kept["cursor"], etag)
        except (ValueError, TypeError, LookupError) as error:
            raise SinkError(
                f"{bucket.uri(INDEX_NAME)} is no index of parts ({error}): remove it"
            ) from None

    def write(
        self, bucket: Place, *, parts: tuple[Part, ...], cursor: str | None, conditional: bool
    ) -> Self:
        """The index with these parts, in the place of this one.

        Raises SinkTaken where another process has replaced it."""
        content = {
            "version": _VERSION,
            "job": self.job_id,
            "results": sum(part.results for part in parts),
            "cursor": cursor,
            "parts": [part._asdict() for part in parts],
        }
        condition = {"IfMatch": self.etag} if self.etag else ABSENT
        body = orjson.dumps(content, option=orjson.OPT_INDENT_2)
        etag = bucket.put(INDEX_NAME, body, condition=condition if conditional else None)
        return type(self)(self.job_id, parts, cursor, etag)
