"""The job that a batch becomes, and the file that it reads."""

from __future__ import annotations

from typing import Any, Final

from penstock_gateway.backend import Backend
from penstock_gateway.batches.metadata import TENANT, asked_in
from penstock_gateway.files.store import FileStore
from penstock_gateway.settings import GatewaySettings
from penstock_ledger import DoorBatch, Whose
from penstock_producer import JobSpec, SpecError
from penstock_producer.accepting.acceptance import check_acceptable
from penstock_producer.accepting.borders import Borders
from penstock_producer.errors import Problem
from penstock_producer.job.lanes import can_answer

__all__ = ["ANTHROPIC", "OPENAI", "anthropic_provider", "input_path", "spec_of", "spec_of_batch"]

ANTHROPIC: Final = "anthropic"
OPENAI: Final = "openai"


def input_path(backend: Backend, batch: DoorBatch) -> str | None:
    """Where the file of a batch lies; None where it is gone, or is another tenant's.

    A batch that the operator has made for a tenant may read a file of the operator's."""
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
    """``model``: the one that all lines name; None: there are several, or it is not known yet, and
    then a budget is not held against prices here: the job's submit does that. Raises SpecError for
    what this installation cannot answer, or this tenant may not ask for; Refused for metadata."""
    door = settings.gateway.batches
    options: dict[str, Any] = {
        "lane": door.lane,
        "endpoint": endpoint,
        "tenant": tenant,
        "format": "jsonl",
        "deadline_s": deadline_s,
        "model": model,
        "stop_at_dead": door.stop_at_dead,
    }
    if kind == ANTHROPIC:
        options |= {"provider": anthropic_provider(settings), "max_bad_rows": "100%"}
    else:
        options |= {"provider": door.provider, "max_bad_rows": 0}
    spec = JobSpec(**{**options, **asked_in(metadata)})
    _check_answered(settings, spec)
    check_acceptable(
        spec if model is not None else spec.model_copy(update={"budget_usd": None}),
        settings.prices(spec.provider),
    )
    if tenant is not None:  # the operator's own may do what the command line does
        Borders(settings.doors, names_tenants=False).check(spec)
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


def anthropic_provider(settings: GatewaySettings) -> str:
    """The provider that message batches go to. Raises SpecError."""
    door = settings.gateway.batches
    named = door.messages_provider or door.provider
    kinds = {name: facts.kind for name, facts in settings.providers.items()}
    if kinds.get(named) == ANTHROPIC:
        return named
    theirs = [name for name, kind in kinds.items() if kind == ANTHROPIC]
    if door.messages_provider is None and len(theirs) == 1:
        return theirs[0]
    why = f"message batches need a provider of kind anthropic, and {named!r} is none"
    fix = (
        "have the operator set gateway.batches.messages_provider to the name of one: "
        "providers.NAME.kind = 'anthropic'"
    )
    raise SpecError([Problem("unsupported", "/endpoint", why, fix)])


def _check_answered(settings: GatewaySettings, spec: JobSpec) -> None:
    for lane in spec.permitted_lanes:
        refusal = settings.refused_endpoint(spec.provider, spec.endpoint, lane)
        if refusal is None and not can_answer(lane, spec.endpoint):
            refusal = f"lane {lane} does not answer {spec.endpoint}"
        if refusal is not None:
            raise SpecError([Problem("invalid_value", "/endpoint", refusal, "")])
