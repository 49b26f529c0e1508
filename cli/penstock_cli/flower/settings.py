"""What `penstock flower` needs to know beside the broker."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from penstock_workers.settings import WorkerSettings

Port = Annotated[int, Field(ge=0, le=65_535)]


class FlowerSettings(BaseModel):
    """None leaves it to Flower's own variable (`FLOWER_PORT`, …), and then to ``options.DEFAULTS``.

    Nested on purpose: Kubernetes puts a PENSTOCK_FLOWER_PORT=tcp://… into every pod beside a
    Service `penstock-flower`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    auth: SecretStr | None = (
        None  # user:password, several with commas between; FLOWER_BASIC_AUTH means the same
    )
    address: str | None = None
    port: Port | None = None  # 0 takes a free one
    url_prefix: str | None = None
    max_tasks: Annotated[int, Field(ge=100, le=1_000_000)] | None = None
    max_workers: Annotated[int, Field(ge=1, le=100_000)] | None = None
    purge_offline_workers: Annotated[int, Field(ge=1)] | None = None  # seconds
    read_only: bool | None = None


class FlowerRole(WorkerSettings):
    """The settings of a process that runs Flower: a worker's, for the broker."""

    flower: FlowerSettings = FlowerSettings()
