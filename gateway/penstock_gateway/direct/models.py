"""`GET /v1/models`: the models that callers may name, as OpenAI and Anthropic list them.

Hosted models are those that living workers say they serve. Of a provider's own, those that the
settings price are listed, in `providers.NAME.prices`, and those that it lists itself, as workers
have read it; where none did, those of the table of prices. Any other model of the provider may be
asked for all the same, where a worker of its lane lives.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.direct.calls import Calls
from penstock_gateway.direct.routes import May
from penstock_gateway.refused import Refused
from penstock_gateway.routing import Router

__all__ = ["ModelList", "router"]

router = Router(tags=["direct"])

MODELS_MAX: Final = 1_000  # of one list; more names than that are served, and are not listed
# what Anthropic's API says where it does not know the day of a release
UNKNOWN: Final = "1970-01-01T00:00:00Z"
_MODEL: Final[dict[str, Any]] = {
    "id": "Qwen/Qwen3-8B",
    "object": "model",
    "type": "model",
    "created": 0,
    "created_at": UNKNOWN,
    "display_name": "Qwen/Qwen3-8B",
    "owned_by": "penstock",
    "max_model_len": 40_960,
}


class ModelResponse(BaseModel):
    """A model by one of its names."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [_MODEL]})

    id: str
    object: str = "model"
    type: str = "model"
    created: int = Field(default=0, description="0 where it is not known.")
    created_at: str = Field(
        default=UNKNOWN, description="The time in `created`, as Anthropic's client reads it."
    )
    display_name: str
    owned_by: str = Field(
        description="`penstock` where workers host it, else the name of the provider."
    )
    max_model_len: int | None = Field(
        default=None, description="Tokens of prompt and answer together, where known."
    )


class ModelList(BaseModel):
    """All of them, in one answer."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "object": "list",
                    "data": [_MODEL],
                    "has_more": False,
                    "first_id": _MODEL["id"],
                    "last_id": _MODEL["id"],
                }
            ]
        },
    )

    object: str = "list"
    data: list[ModelResponse]
    has_more: bool = False
    first_id: str | None
    last_id: str | None


@router.get("/v1/models", operation_id="list_models")
async def list_models(request: Request, _caller: May) -> ModelList:
    """List the models of living workers, and those of the provider that are known."""
    found = list((await _known(backend_of(request))).values())[:MODELS_MAX]
    return ModelList(
        data=found, first_id=found[0].id if found else None, last_id=found[-1].id if found else None
    )


@router.get(
    "/v1/models/{model:path}",
    operation_id="retrieve_model",
    responses={404: {"description": "not listed"}},
)
async def retrieve_model(request: Request, model: str, _caller: May) -> ModelResponse:
    """Show one of them."""
    known = await _known(backend_of(request))
    if model in known:
        return known[model]
    raise Refused(
        404,
        f"The model {model[:80]!r} is not listed here: GET /v1/models lists what is.",
        code="model_not_found",
        param="model",
    )


async def _known(backend: Backend) -> dict[str, ModelResponse]:
    """Return the models by name, hosted ones first.

    Workers answer where a provider has a model of the same name.
    """
    direct = backend.settings.gateway.direct
    found: dict[str, ModelResponse] = {}
    fleet = backend.part(Calls).fleet
    for served in await fleet.hosted():
        for name in served.every_name:
            found.setdefault(
                name,
                ModelResponse(
                    id=name, display_name=name, owned_by="penstock", max_model_len=served.context
                ),
            )
    facts = backend.settings.prices(direct.provider)
    listed = await fleet.listed(direct.provider)
    for name in [*sorted(facts.prices), *(listed or facts.priced_models)]:
        found.setdefault(name, ModelResponse(id=name, display_name=name, owned_by=direct.provider))
    return found
