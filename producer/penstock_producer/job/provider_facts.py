"""What accepting a job must know of its provider."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from penstock_producer.job.endpoints import Kind, check_path


class ProviderFacts(BaseModel):
    """What the producer needs to know of a provider; workers have more settings of it. A price of 0 stands for an unknown one."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    kind: Kind = "openai"
    endpoints: tuple[str, ...] = ()  # paths that jobs may ask besides those of its dialect, such as /v1/rerank
    usd_per_mtok_in: Annotated[float, Field(ge=0)] = 0.0  # US dollars per million input tokens
    usd_per_mtok_out: Annotated[float, Field(ge=0)] = 0.0

    @property
    def priced(self) -> bool:
        return self.usd_per_mtok_in > 0 or self.usd_per_mtok_out > 0

    @field_validator("endpoints")
    @classmethod
    def _check_endpoints(cls, endpoints: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(check_path(endpoint) for endpoint in endpoints)
