"""Adapters into an engine: all of a worker's as it starts, and one that was found while it runs."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from penstock_workers.lanes.gpu.engine.adapter_files import UnusableAdapter, misfit
from penstock_workers.lanes.gpu.engine.adapters import Adapter, Adapters
from penstock_workers.lanes.gpu.engine.engines import Engine, EngineDied

LOAD_S: Final = 120.0  # to load one adapter


class EngineEnded(Exception):
    """The engine is dead, or is to be ended: loading an adapter did that."""


async def load_all(engine: Engine, adapters: Adapters) -> bool:
    """False where one ended the engine; it is left out of the next."""
    for adapter in adapters.to_load(_kept(engine.config)):
        try:
            await load(engine, adapter)
        except EngineEnded as error:
            adapter.refuse(str(error))
            engine.kill()
            return False
        except UnusableAdapter as error:
            adapter.refuse(str(error))
    return True


async def load(engine: Engine, adapter: Adapter) -> None:
    """Raises UnusableAdapter for what is wrong with it, and EngineEnded."""
    why = misfit(adapter.facts, getattr(engine.config.model_config, "hf_text_config", None))
    if why is not None:
        raise UnusableAdapter(why)
    try:
        async with asyncio.timeout(LOAD_S):
            await engine.load(adapter.request())
    except (EngineDied, TimeoutError) as error:
        raise EngineEnded(
            f"it ends the engine that loads it ({type(error).__name__} {error})"
        ) from error
    except Exception as error:  # in whatever class
        raise UnusableAdapter(f"{type(error).__name__}: {error}") from error
    adapter.proved = True


def _kept(config: Any) -> int:
    """Adapters that the engine keeps in memory; 0 where it has none."""
    lora = getattr(config, "lora_config", None)
    return 0 if lora is None else int(lora.max_cpu_loras or lora.max_loras)
