"""vLLM's own engine arguments, passed through. Which there are is asked of the vLLM that is installed, never guessed."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from penstock_workers.errors import BadEngineSettings
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.lanes.gpu.upstream import upstream, version

SHUTDOWN_MARGIN_S = (
    15  # the engine outlives our own drain by this, so that a signal to the whole group ends nothing early
)

LORAS_MAX = 8  # adapters active in one step; each takes GPU memory


def engine_arguments(settings: GpuSettings, *, drain_seconds: float) -> Any:
    """An ``AsyncEngineArgs`` of the installed vLLM. Raises BadEngineSettings, naming the argument and the nearest one."""
    make = upstream("vllm", "AsyncEngineArgs")
    known = {field.name for field in dataclasses.fields(make)}
    for name in settings.engine:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "see `vllm serve --help=all` for what there is"
            raise BadEngineSettings(f"gpu.engine.{name}: this vLLM ({version()}) has no such argument; {hint}")
    defaults = {name: value for name, value in _defaults(settings, drain_seconds).items() if name in known}
    try:
        return make(**(defaults | settings.engine))
    except (TypeError, ValueError) as error:
        raise BadEngineSettings(f"gpu.engine: vLLM refuses these arguments: {error}") from error


def _defaults(settings: GpuSettings, drain_seconds: float) -> dict[str, Any]:
    """What is set unless the settings do. Sizes always, since vLLM's own differ between its server and its batch class."""
    chosen = {
        "model": settings.model,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "scheduling_policy": "priority",
        "shutdown_timeout": round(drain_seconds + SHUTDOWN_MARGIN_S),
        "disable_log_stats": False,
    }
    return chosen | ({"enable_lora": True, "max_loras": min(len(settings.lora), LORAS_MAX)} if settings.lora else {})
