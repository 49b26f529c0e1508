"""A setting allows some hooks. Apart, because the processes that run hooks import little."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["is_allowed"]


def is_allowed(path: str, modules: Sequence[str]) -> bool:
    """Return whether a hook comes from one of ``modules``, or from inside one.

    ``path`` is `package.module:function`.
    """
    module = path.partition(":")[0]
    return any(module == one or module.startswith(f"{one}.") for one in modules)
