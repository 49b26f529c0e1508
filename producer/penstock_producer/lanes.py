"""The lanes by name: how documents are inferred. Light to import, as command lines need the names before anything else."""

from __future__ import annotations

from typing import Final, Literal, get_args

__all__ = ["LANES", "LANES_WITH_A_MODEL_OF_THEIR_OWN", "Lane"]

Lane = Literal["api", "gpu", "embed", "batch"]
LANES: Final[tuple[Lane, ...]] = get_args(Lane)
LANES_WITH_A_MODEL_OF_THEIR_OWN = frozenset({"gpu", "embed"})
"""Their workers host one model: requests need not name it, and cost no tokens of a provider."""
