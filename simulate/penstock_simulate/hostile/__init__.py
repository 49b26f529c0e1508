"""Answers that no client should trust: what `penstock simulate --hostile` sends, by name.

Each family is a file with a table of its kinds. A kind is a function of the request; nothing in
here sends a byte.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock_simulate.errors import BadSetting
from penstock_simulate.hostile import bodies, pages, redirects, sizes, texts, waits, wires
from penstock_simulate.hostile.kinds import Kind

__all__ = ["KINDS", "Kind", "chosen", "listing"]

FAMILIES = {
    "Texts": texts.KINDS,
    "Pages": pages.KINDS,
    "Waits and limits": waits.KINDS,
    "Redirects": redirects.KINDS,
    "Sizes": sizes.KINDS,
    "The wire": wires.KINDS,
    "Bodies": bodies.KINDS,
}
KINDS: Mapping[str, Kind] = {kind.name: kind for kinds in FAMILIES.values() for kind in kinds}


def chosen(names: str | None) -> tuple[Kind, ...]:
    """The kinds of `--hostile`. Raises BadSetting for a name that is unknown."""
    if names is None:
        return ()
    if names == "all":
        return tuple(KINDS.values())
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in KINDS:
            raise BadSetting(
                f"--hostile: {name!r} is not a kind; `penstock simulate --hostile list` shows all "
                "of them"
            )
    return tuple(KINDS[name] for name in dict.fromkeys(wanted))


def listing() -> str:
    """Every kind in a line of its own, by family."""
    width = max(map(len, KINDS))
    return "\n".join(
        f"{family}\n" + "".join(f"  {kind.name:<{width}}  {kind.line}\n" for kind in kinds)
        for family, kinds in FAMILIES.items()
    )
