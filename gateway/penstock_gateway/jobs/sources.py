"""What a caller names as a source, and whose the job is that reads it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from penstock_gateway.backend import Backend
from penstock_gateway.callers.caller import Caller
from penstock_gateway.files.store import FileStore
from penstock_gateway.ids import is_id
from penstock_gateway.jobs.shapes import NewJob
from penstock_gateway.refused import not_found
from penstock_ledger import Whose
from penstock_producer import SpecError
from penstock_producer.errors import Problem, seen
from penstock_producer.job.spec import JobSpec

__all__ = ["Source", "options_of", "source_of"]

_OWN: Final = ("job", "source", "from_job", "where", "open")
_FILE: Final = "file-"


class Source(NamedTuple):
    where: str
    uploaded: bool  # a file of these doors; else a place that has to lie inside source_roots


def source_of(backend: Backend, caller: Caller, named: str) -> Source:
    """Blocks. Raises Refused (404) for a file that is not there for this caller."""
    if not named.startswith(_FILE):
        return Source(named, uploaded=False)
    store = FileStore(backend.settings, backend.database)
    whose = Whose(caller.tenant, every="admin" in caller.scopes)
    file = store.get(named, whose) if is_id("file", named) else None
    if file is None:
        raise not_found("file", named)
    return Source(store.place(file), uploaded=True)


def options_of(given: NewJob, caller: Caller) -> dict[str, Any]:
    """The job options, with the tenant whose job it is. Raises SpecError."""
    options = given.options
    problems = [*_near_misses(options), *_sources(given), *_tenant_problems(options, caller)]
    if problems:
        raise SpecError(problems)
    if options.get("tenant") is None:
        options["tenant"] = caller.tenant
    return options


def _near_misses(options: Mapping[str, Any]) -> list[Problem]:
    """Names that are nearer to a field of this door than to an option, about which the spec says more."""
    found = []
    for name in options.keys() - JobSpec.model_fields.keys():
        close = difflib.get_close_matches(name, [*_OWN, *JobSpec.model_fields], n=1)
        if close and close[0] in _OWN:
            found.append(
                Problem("unknown_field", f"/{name}", f"there is no field {seen(name)}", f"did you mean {close[0]!r}?")
            )
    return found


def _sources(given: NewJob) -> list[Problem]:
    named = [name for name in ("source", "from_job", "open") if getattr(given, name)]
    if len(named) == 1:
        return []
    if named:
        return [Problem("invalid_value", f"/{named[1]}", f"{' and '.join(named)} are given", "give one of them")]
    fix = "give source, the id of an uploaded file or an s3:// URI, or from_job, or open: true"
    return [Problem("missing_field", "/source", "there are no documents", fix)]


def _tenant_problems(options: Mapping[str, Any], caller: Caller) -> list[Problem]:
    tenant = options.get("tenant")
    if tenant is None or tenant == caller.tenant or "admin" in caller.scopes:
        return []
    return [Problem("not_allowed", "/tenant", f"{seen(tenant)} is not the tenant of this key", "leave it out")]
