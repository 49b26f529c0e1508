"""The settings of all lanes have this in common."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from penstock_producer.settings import check_url


class LaneSettings(BaseModel):
    """The settings that one lane alone reads.

    They are `[NAME]` in penstock.toml and `PENSTOCK_NAME__FIELD` as variables."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    def suitable_concurrency(self) -> int | None:
        """Return how many items a worker should hold where `concurrency` is not given.

        None: as many as in any lane."""
        return None

    def cards_per_engine(self) -> int | None:
        """Return how many GPUs of this machine one engine uses.

        None where the lane's workers compute on none of their choosing."""
        return None

    def kept_in(self, folder: Path) -> Self:
        """Return these settings for a job with a folder of its own on this machine.

        What the lane keeps then lies beside the job."""
        return self

    def finds_names_later(self) -> bool:
        """Return whether workers serve names besides those of the settings.

        Such names are known once a worker is up."""
        return False

    def hosting(self, model: str) -> Self:
        """Return these settings with the model that a command line names.

        For lanes that host a model themselves."""
        raise NotImplementedError(f"{type(self).__name__} hosts no model")


def check_upstream(url: str, server: str, example: str) -> None:
    """Check ``url``, a lane's `upstream_url`.

    It is where ``server`` answers with OpenAI's API. Raises ValueError."""
    try:
        check_url(url, ("http", "https"))
    except ValueError as error:
        raise ValueError(f"upstream_url: {error}") from None
    if not url.endswith("/v1"):
        raise ValueError(f"upstream_url: give {server}'s address with its /v1, as in {example}")
