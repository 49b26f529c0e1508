"""The job that a batch becomes, and the file that it reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from penstock_gateway.backend import Backend
from penstock_gateway.bodies import checked_metadata, refused_metadata
from penstock_gateway.callers.caller import Caller
from penstock_gateway.files.store import FileStore
from penstock_gateway.middleware import is_shown
from penstock_gateway.refused import Refused
from penstock_gateway.settings import GatewaySettings
from penstock_ledger import DoorBatch, Whose
from penstock_producer import JobSpec, SpecError
from penstock_producer.accepting.acceptance import check_acceptable
from penstock_producer.accepting.remote_limits import RemoteLimits
from penstock_producer.dialects.translation import USUAL_TOKENS, ways_to
from penstock_producer.errors import Problem, seen
from penstock_producer.job.endpoints import MESSAGES
from penstock_producer.job.lanes import can_answer
from penstock_producer.job.options import seconds_of

__all__ = [
    "ANTHROPIC",
    "ENDPOINTS",
    "OPENAI",
    "TENANT",
    "AskedBatch",
    "asked_batch",
    "asked_in",
    "input_path",
    "metadata_of",
    "place_of",
    "spec_of",
    "spec_of_batch",
    "tenant_of_batch",
]

OURS: Final = "penstock."
_NUMBERS: Final = {
    "budget_usd": "US dollars",
    "stop_at_usd_per_doc": "US dollars",
    "max_prompt_tokens": "tokens",
}
# of a job; others are not for callers to choose
_FIELDS: Final = ("priority", "lane", "tier", "tenant", "stop_at_dead", *_NUMBERS)
TENANT: Final = f"{OURS}tenant"


def metadata_of(given: Any) -> dict[str, str] | None:
    """Return metadata as it was given, once it was checked. Raises Refused."""
    checked = checked_metadata(given)
    for key in checked or ():
        if key.startswith(OURS) and key.removeprefix(OURS) not in _FIELDS:
            known = ", ".join(OURS + name for name in _FIELDS)
            raise refused_metadata(
                f"metadata.{key}", f"no such option; those that begin with {OURS} are {known}"
            )
    return checked


def tenant_of_batch(metadata: Mapping[str, str] | None, caller: Caller) -> str | None:
    """Return the tenant of a new batch: its caller's, or one that an operator names.

    Raises Refused (403).
    """
    named = (metadata or {}).get(TENANT)
    if named is None:
        return caller.tenant
    if "admin" not in caller.scopes:
        why = (
            "only a key with the scope admin makes batches for a tenant; leave it out, and the "
            "batch is that of your key"
        )
        raise Refused(
            403,
            f"Invalid value for 'metadata.{TENANT}': {why}.",
            code="not_allowed",
            param=f"metadata.{TENANT}",
        )
    return named


def asked_in(metadata: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the options of a job that metadata asks for. Raises Refused."""
    asked: dict[str, Any] = {}
    for name in _FIELDS:
        value = (metadata or {}).get(OURS + name)
        if value is not None:
            asked[name] = _number(name, value) if name in _NUMBERS else value
    return asked


def place_of(pointer: str) -> str:
    """Return where a caller has written what a job's spec refuses.

    ``pointer`` leads into the spec.
    """
    name = pointer.strip("/").partition("/")[0]
    return f"metadata.{OURS}{name}" if name in _FIELDS else name


def _number(name: str, text: str) -> float:
    try:
        return int(text) if name == "max_prompt_tokens" else float(text)
    except ValueError:
        raise refused_metadata(
            f"metadata.{OURS}{name}", f"{text[:80]!r} is not a number of {_NUMBERS[name]}"
        ) from None


ENDPOINTS: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/moderations",
)
FIELDS: Final = frozenset(
    {
        "input_file_id",
        "endpoint",
        "completion_window",
        "metadata",
        "output_expires_after",
        "callback_url",
    }
)
MAX_WINDOW_S: Final = 30 * 86_400.0  # files of batches expire then
OUTPUT_S: Final = (3_600, 2_592_000)  # the least and the most, OpenAI's
_WINDOW: Final = re.compile(r"[1-9]\d{0,8}(s|m|h|d)", re.ASCII)


class AskedBatch(Struct, frozen=True):
    input_file_id: str
    endpoint: str
    window_s: float
    metadata: dict[str, str] | None
    output_expires_s: float | None
    callback_url: str | None = None


def asked_batch(given: dict[str, Any]) -> AskedBatch:
    unknown = sorted(given.keys() - FIELDS)
    if unknown:
        raise _refused(unknown[0][:80], "unknown parameter", "unknown_parameter")
    return AskedBatch(
        _file_id(given.get("input_file_id")),
        _endpoint(given.get("endpoint")),
        _window_s(given.get("completion_window")),
        metadata_of(given.get("metadata")),
        _output_s(given.get("output_expires_after")),
        _callback(given.get("callback_url")),
    )


def _callback(given: Any) -> str | None:
    if given is not None and not isinstance(given, str):
        raise _refused("callback_url", "give the URL as text", "invalid_type")
    return given


def _file_id(given: Any) -> str:
    if given is None:
        raise _refused("input_file_id", "it is required", "missing_required_parameter")
    if not isinstance(given, str):
        raise _refused(
            "input_file_id", f"expected a string, but got {type(given).__name__}", "invalid_type"
        )
    # A file that is not there fails the batch, as at OpenAI, and keeps the name that it was given.
    if not is_shown(given):
        raise _refused("input_file_id", "it is no id of a file")
    return given


def _endpoint(given: Any) -> str:
    if isinstance(given, str) and given in ENDPOINTS:
        return given
    supported = ", ".join(f"'{one}'" for one in ENDPOINTS)
    raise _refused("endpoint", f"{seen(given)}; supported values are {supported}")


def _window_s(given: Any) -> float:
    """Return the window in seconds.

    A window that is accepted is kept: the batch ends with it, whatever is not done by then.
    """
    if isinstance(given, str) and _WINDOW.fullmatch(given) and seconds_of(given) <= MAX_WINDOW_S:
        return seconds_of(given)
    why = f"{seen(given)}; write a whole number and s, m, h or d, up to 30d, such as '24h'"
    raise _refused("completion_window", why)


def _output_s(given: Any) -> float | None:
    if given is None:
        return None
    least, most = OUTPUT_S
    seconds = given.get("seconds") if isinstance(given, dict) else None
    fits = type(seconds) is int and least <= seconds <= most and given.get("anchor") == "created_at"
    if not isinstance(seconds, int) or not fits:
        raise _refused(
            "output_expires_after", f"give the anchor 'created_at' and {least} to {most} seconds"
        )
    return float(seconds)


def _refused(param: str, why: str, code: str = "invalid_value") -> Refused:
    return Refused(400, f"Invalid value for '{param}': {why}.", code=code, param=param)


ANTHROPIC: Final = "anthropic"
OPENAI: Final = "openai"


def input_path(backend: Backend, batch: DoorBatch) -> str | None:
    """Return where the file of a batch lies; None where it is gone, or is another tenant's.

    A batch that the operator has made for a tenant may read a file of the operator's.
    """
    files = FileStore(backend.settings, backend.database)
    file = files.get(batch.input_file_id, Whose(batch.tenant))
    if file is None and TENANT in (batch.metadata or {}):
        file = files.get(batch.input_file_id, Whose(None))
    return None if file is None else files.place(file)


def spec_of(
    settings: GatewaySettings,
    *,
    kind: str,
    tenant: str | None,
    endpoint: str,
    metadata: dict[str, str] | None,
    deadline_s: float,
    model: str | None = None,
) -> JobSpec:
    """Return the spec of a batch's job. ``model`` is the one that all lines name.

    None: there are several, or it is not known yet, and then a budget is not held against prices
    here: the job's submit does that. Raises SpecError for what this installation cannot answer, or
    this tenant may not ask for; Refused for metadata.
    """
    door = settings.gateway.batches
    options: dict[str, Any] = {
        "lane": door.lane,
        "tenant": tenant,
        "format": "jsonl",
        "deadline_s": deadline_s,
        "model": model,
        "stop_at_dead": door.stop_at_dead,
    }
    if kind == ANTHROPIC:
        options |= {"provider": _messages_provider(settings), "max_bad_rows": "100%"}
    else:
        options |= {"provider": door.provider, "max_bad_rows": 0}
    spec = _answered(settings, options | asked_in(metadata), endpoint)
    check_acceptable(
        spec if model is not None else spec.model_copy(update={"budget_usd": None}),
        settings.prices(spec.provider),
    )
    if tenant is not None:  # the operator's own may do what the command line does
        RemoteLimits(settings.doors, names_tenants=False).check(spec)
    return spec


def spec_of_batch(
    settings: GatewaySettings, batch: DoorBatch, deadline_s: float, model: str | None = None
) -> JobSpec:
    return spec_of(
        settings,
        kind=batch.kind,
        tenant=batch.tenant,
        endpoint=batch.endpoint,
        metadata=batch.metadata,
        deadline_s=deadline_s,
        model=model,
    )


def _messages_provider(settings: GatewaySettings) -> str:
    """Return the provider that message batches go to.

    It is the one that is named, else the only one whose API they are, else that of other batches.
    """
    door = settings.gateway.batches
    if door.messages_provider is not None:
        return door.messages_provider
    kinds = {name: facts.kind for name, facts in settings.providers.items()}
    theirs = [name for name, kind in kinds.items() if kind == ANTHROPIC]
    return theirs[0] if len(theirs) == 1 else door.provider


def _answered(settings: GatewaySettings, options: Mapping[str, Any], endpoint: str) -> JobSpec:
    """Return a spec whose lanes answer requests to an endpoint, translated where they must be.

    Raises SpecError, which says why they cannot be sent as they are.
    """
    refused: SpecError | None = None
    for sent in ways_to(endpoint):
        usual = {"max_tokens": USUAL_TOKENS} if sent == MESSAGES != endpoint else {}
        spec = JobSpec(**options, endpoint=sent, params=usual)
        try:
            _check_answered(settings, spec)
        except SpecError as error:
            refused = refused or error
        else:
            return spec
    assert refused is not None, "there is one way at least"
    raise refused


def _check_answered(settings: GatewaySettings, spec: JobSpec) -> None:
    for lane in spec.permitted_lanes:
        refusal = settings.refused_endpoint(spec.provider, spec.endpoint, lane)
        if refusal is None and not can_answer(lane, spec.endpoint):
            refusal = f"lane {lane} does not answer {spec.endpoint}"
        if refusal is not None:
            raise SpecError([Problem("invalid_value", "/endpoint", refusal, "")])
