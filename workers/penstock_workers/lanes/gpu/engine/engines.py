"""vLLM behind one small interface: what an engine is asked, what it may raise.

Its two kinds are in modules of their own.

Nothing of vLLM is imported before a worker starts its engine. What differs between its versions
(0.26 to 0.33) is asked of the installed one, in ``vllm_calls`` and in ``arguments``.

What is used of vLLM, by name, looked up in the one that is installed: it is an extra, and heavy
to import.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock_workers.errors import BadEngineSettings, PackageMissing


class EngineDied(Exception):
    """The engine is gone, and with it every request that was in it."""


class EngineBusy(Exception):
    """The engine takes no more requests now."""


class EngineFault(Exception):
    """The engine could not do this request, and goes on."""


class RequestRefused(Exception):
    """The engine says that this request can never be done."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class EngineCall:
    """One request in the engine's own terms."""

    request_id: str
    token_ids: list[int]
    params: Any  # vLLM's SamplingParams or PoolingParams
    lora: Any = None  # vLLM's LoRARequest
    priority: int = 0  # lower goes first
    facts: Any = field(default=None, repr=False)  # what the reply will need besides
    # vLLM's own input, where there is more to it than ``token_ids``
    rendered: Any = field(default=None, repr=False)
    media_bytes: int = 0  # that it holds
    parts: Sequence[EngineCall] = ()  # run in its place, where one request is many of the engine's
    # whose it is: its files stay as long as a call has it
    adapter: Any = field(default=None, repr=False)


class Engine(Protocol):
    """One engine. Built anew after its death, never revived."""

    config: Any  # vLLM's VllmConfig, complete once ``start`` has returned

    async def start(self) -> None:
        """Load the model.

        Raises BadEngineSettings; what went wrong in a child is in the worker's log."""

    async def run(self, call: EngineCall, began: Callable[[], None]) -> Any:
        """Run a call and return the finished RequestOutput.

        Cancelling ends the request. ``began`` is called at its first token; what is pooled has
        none.

        Raises RequestRefused, EngineBusy, EngineFault, EngineDied.
        """
        ...

    async def load(self, lora: Any) -> None:
        """Load an adapter. Raises EngineDied, and else whatever is wrong with it."""
        ...

    def tokenizer(self) -> Any: ...

    def renderer(self) -> Any:
        """Return vLLM's renderer, which makes prompts of chats.

        None where this version has none."""
        ...

    def pids(self) -> list[int]:
        """Return its processes, also while it starts."""
        ...

    def is_alive(self) -> bool: ...

    def compiles(self) -> bool:
        """Return whether processes run in it that it has for a while only: compilers."""
        ...

    def kill(self) -> bool:
        """End an engine that does not answer.

        False where it cannot be ended without this process."""
        ...

    async def stop(self) -> None:
        """End it; nothing may be in flight: vLLM leaves callers hanging."""


def upstream(module: str, name: str) -> Any:
    """Return a class of vLLM's.

    Raises PackageMissing where there is no vLLM, BadEngineSettings for one that has no such class.
    """
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name == "vllm":
            raise PackageMissing("gpu", "vLLM", "gpu") from error
        raise _unknown(module, name, error) from error
    except AttributeError as error:
        raise _unknown(module, name, error) from error


def version() -> str:
    return str(upstream("vllm", "__version__"))


def _unknown(module: str, name: str, error: Exception) -> BadEngineSettings:
    return BadEngineSettings(
        f"this vLLM has no {module}.{name} ({error}): install one from 0.26 to 0.33"
    )
