"""The settings of the `gpu` lane. Light: every process of the fleet reads them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import Field, field_validator, model_validator

from penstock_producer.storage import check_destination
from penstock_workers.lanes.lane_settings import LaneSettings, check_upstream

GIB: Final = 1024**3
TIB: Final = 1024**4
BUCKET: Final = "s3://"
# that vLLM runs at once on most cards; what it chose for this one is known once it is up
SEQUENCES: Final = 256
# items that its engine runs, and as many whose prompts are made meanwhile
SLOTS_PER_SEQUENCE: Final = 2

_OF_A_HOST: Final = (
    "model",
    "lora",
    "lora_from",
    "engine",
    "chat_template",
    "reasoning_parser",
    "tool_parser",
    "media_folder",
)


class GpuSettings(LaneSettings):
    """The model that a `gpu` worker hosts, and how vLLM is to run it."""

    model: str | None = None  # a folder, or a name that vLLM can resolve
    upstream_url: str | None = None  # ask this vLLM server (…/v1) instead of hosting an engine
    # for its model to be loaded: weights may travel
    upstream_wait_s: Annotated[float, Field(gt=0, le=86_400)] = 1800.0
    # people who use that server, too, go first: seconds to the first token; docs/interactive.md
    interactive_ttft_s: Annotated[float, Field(gt=0, le=600, allow_inf_nan=False)] | None = None
    # what requests may call it besides; always its path and the last part of that
    names: tuple[str, ...] = ()
    # adapter name, as requests give it for `model` -> folder
    lora: dict[str, str] = Field(default_factory=dict)
    # a folder or s3://bucket/prefix with a folder for each further adapter; they may change
    lora_from: str | None = None
    lora_every_s: Annotated[float, Field(ge=1, le=3600)] = 30.0  # between two looks at it
    lora_max_bytes: Annotated[int, Field(ge=1024, le=TIB)] = 2 * GIB  # of one adapter there
    # what comes from elsewhere is kept here; None = ~/.cache/penstock/models
    cache_dir: str | None = None
    # of the cache; the least used goes first
    cache_bytes: Annotated[int, Field(ge=1024**2, le=1024 * TIB)] = 200 * GIB
    # weights in *.bin and *.pt, of a model from s3://, which may hold programs
    pickles: bool = False
    chat_template: str | None = None  # Jinja, or a file with it; None = the model's own
    # vLLM's, by its name: what the model thinks, apart from what it says
    reasoning_parser: str | None = None
    tool_parser: str | None = None  # vLLM's, by its name: which tools an answer calls
    # Of the images and sounds of one item together, before any of them is decoded.
    media_items_max: Annotated[int, Field(ge=0, le=1000)] = 16
    media_bytes_max: Annotated[int, Field(ge=0)] = 64 * 1024 * 1024
    image_pixels_max: Annotated[int, Field(ge=0)] = 100_000_000
    # of a worker, decoded, until they are answered
    media_memory_bytes: Annotated[int, Field(ge=1)] = 4 * 1024**3
    # documents may name its files as file:///…; None = no file of this machine
    media_folder: str | None = None
    # Requests run at once, by each replica; None = as vLLM chooses for the card: 256, or 1024 from
    # 70 GiB of memory.
    max_num_seqs: Annotated[int, Field(ge=1, le=16_384)] | None = None
    # Tokens in one step of the engine; None = as vLLM chooses for the card: 8192, or 16384 from 70
    # GiB of memory.
    max_num_batched_tokens: Annotated[int, Field(ge=1)] | None = None
    # vLLM's own arguments, such as tensor_parallel_size
    engine: dict[str, Any] = Field(default_factory=dict)
    # the cards that this worker's engine uses, for people to read; `penstock worker --gpus` sets it
    cards: str = ""
    # the engine in this process: up in 2 s, and not apart from it. For CPUs and tests
    in_process: bool = False
    # that render templates and count tokens
    prepare_threads: Annotated[int, Field(ge=1, le=64)] = 2
    # A step of the engine that takes longer counts as hung; None = by the model's size, 20 s for a
    # small one.
    stall_s: Annotated[float, Field(gt=0, le=3600)] | None = None
    # engines built anew in an hour; a culprit takes four
    rebuilds_max: Annotated[int, Field(ge=0, le=100)] = 10

    @field_validator("model", "lora_from")
    @classmethod
    def _check_place(cls, place: str | None) -> str | None:
        """Check a place in a bucket, and take one that a variable leaves empty for none."""
        if not place or not place.startswith(BUCKET):
            return place or None
        try:
            return check_destination(place).rstrip("/")
        except ValueError:
            raise ValueError(
                f"{place!r} is no place in a bucket; give s3://bucket/prefix"
            ) from None

    @model_validator(mode="after")
    def _check_folder(self) -> Self:
        if self.media_folder is not None and not Path(self.media_folder).is_absolute():
            raise ValueError(
                f"media_folder: {self.media_folder!r} is relative; give the whole path, as in "
                "/data/images"
            )
        return self

    @model_validator(mode="after")
    def _check_upstream(self) -> Self:
        if self.upstream_url is None:
            if self.interactive_ttft_s is not None:
                raise ValueError(
                    "interactive_ttft_s is for a server that others use, too: give its "
                    "upstream_url, or leave it out"
                )
            return self
        check_upstream(self.upstream_url, "a vLLM server", "http://127.0.0.1:8000/v1")
        given = [name for name in _OF_A_HOST if getattr(self, name)]
        if given:
            raise ValueError(
                f"with upstream_url the server has the model: leave out {', '.join(given)}"
            )
        return self

    def suitable_concurrency(self) -> int:
        """Return what suits, as far as settings tell.

        An engine that runs more says so once it is up."""
        return SLOTS_PER_SEQUENCE * self.sequences * self.data_parallel

    @property
    def sequences(self) -> int:
        """Requests that one replica runs at once, as far as settings tell."""
        return _number(self.engine.get("max_num_seqs"), default=self.max_num_seqs or SEQUENCES)

    @property
    def cache_folder(self) -> Path:
        if self.cache_dir is not None:
            return Path(self.cache_dir).expanduser()
        return (
            Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
            / "penstock"
            / "models"
        )

    @property
    def data_parallel(self) -> int:
        """Replicas of the model in one engine."""
        return _number(self.engine.get("data_parallel_size"))

    @property
    def cards_per_replica(self) -> int:
        return _number(self.engine.get("tensor_parallel_size")) * _number(
            self.engine.get("pipeline_parallel_size")
        )

    def cards_per_engine(self) -> int | None:
        return (
            None if self.upstream_url is not None else self.cards_per_replica * self.data_parallel
        )

    def finds_names_later(self) -> bool:
        return self.lora_from is not None

    def hosting(self, model: str) -> Self:
        folder = Path(model)
        if model.startswith(BUCKET):
            return self.model_copy(
                update={"model": model.rstrip("/"), "names": (*self.names, model)}
            )
        if self.model is not None and not folder.is_dir():
            return self  # what is named is an adapter, or the model by another name
        hosted = str(folder.resolve()) if folder.is_dir() else model
        return self.model_copy(update={"model": hosted, "names": (*self.names, model)})


def _number(value: Any, default: int = 1) -> int:
    """Read a number from vLLM's own arguments, which come as they were written.

    What is not a number is left for vLLM to refuse."""
    text = str(value)
    return int(text) if text.isdecimal() and 0 < len(text) < 10 and int(text) else default
