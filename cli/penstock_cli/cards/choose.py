"""Which cards `--gpus` means, in groups of as many as one engine uses.

Raises UsageProblem for what cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock_cli.errors import UsageProblem
from penstock_producer.reporting.text import counted

if TYPE_CHECKING:
    from penstock_workers.lanes.cards import CardsSeen, Device

LEAVE_OUT = "to run on the CPU leave --gpus out"
SHOWN_MAX = 16  # devices that an error names


class Group(NamedTuple):
    """The cards of one worker."""

    places: tuple[int, ...]  # in the list of those that may be used
    devices: tuple[Device, ...]

    @property
    def label(self) -> str:
        """``card-0`` or ``cards-0-1``: in names of workers, folders and logs."""
        return f"card{'s' if len(self.places) > 1 else ''}-{'-'.join(map(str, self.places))}"

    @property
    def visible(self) -> str:
        return ",".join(device.name for device in self.devices)


class Visible(NamedTuple):
    """A variable that this process was started with: which cards it may use."""

    variable: str
    text: str


def groups(asked: str, seen: CardsSeen, visible: Visible | None, each: int) -> list[Group]:
    """``each`` is how many cards one engine uses."""
    usable = usable_devices(seen, visible)
    places = _places(asked, usable)
    if len(places) % each:
        raise UsageProblem(
            f"--gpus {asked}: {counted(len(places), 'card')} cannot be divided into groups of "
            f"{each}, the cards of one engine (tensor, pipeline and data parallel sizes "
            f"multiplied): give a multiple of {each}, or another --tensor-parallel"
        )
    divided = [usable[place] for place in places if usable[place].is_slice]
    if divided and each > 1:
        raise UsageProblem(
            f"--gpus {asked}: {divided[0].name} is a MIG slice, and slices cannot work together in "
            "one engine: leave --tensor-parallel out, or give whole cards"
        )
    parts = [tuple(places[start : start + each]) for start in range(0, len(places), each)]
    return [Group(part, tuple(usable[place] for place in part)) for part in parts]


def usable_devices(seen: CardsSeen, visible: Visible | None) -> tuple[Device, ...]:
    """Those that the machine has, or the part of them that the variable leaves."""
    if not seen.devices:
        raise UsageProblem(f"no card was found: {seen.looked}; {LEAVE_OUT}")
    if visible is None:
        return seen.devices
    given = f"{visible.variable}={visible.text!r}"
    names = [name.strip() for name in visible.text.split(",")] if visible.text.strip() else []
    if not names or names == ["-1"]:
        raise UsageProblem(
            f"no card was found: {seen.looked}, and {given} leaves none of them: unset it, or "
            f"{LEAVE_OUT}"
        )
    found = tuple(_named(name, given, seen) for name in names)
    _refuse_twice(given, found)
    return found


def _named(name: str, given: str, seen: CardsSeen) -> Device:
    """By its number, or by the beginning of its UUID, as CUDA takes them.

    It keeps the name that was given."""
    if name.isdecimal():
        found = [device for device in seen.devices if device.name == name]
    else:
        found = [device for device in seen.devices if name and device.uuid.startswith(name)]
    if len(found) == 1:
        return found[0]._replace(name=name)
    why = "names several cards" if found else "is not a card of this machine"
    raise UsageProblem(f"{given}: {name!r} {why}: {seen.looked} ({_shown(seen.devices)})")


def _places(asked: str, usable: Sequence[Device]) -> list[int]:
    text = asked.strip()
    if text == "all":
        return list(range(len(usable)))
    if text.isdecimal() and len(text) < 10:
        return _first(int(text), usable)
    names = [name.strip() for name in text.removesuffix(",").split(",")]
    places = [_place(name, asked, usable) for name in names]
    _refuse_twice(f"--gpus {asked}", [usable[place] for place in places])
    return places


def _first(count: int, usable: Sequence[Device]) -> list[int]:
    if count == 0:
        raise UsageProblem(
            "--gpus 0 is not a number of cards: a number alone is how many; for card 0 alone give "
            "`--gpus 0,`"
        )
    if count > len(usable):
        raise UsageProblem(
            f"--gpus {count}: {counted(len(usable), 'card')} may be used here ({_shown(usable)}): "
            "give that many or fewer, or `all`"
        )
    return list(range(count))


def _place(name: str, asked: str, usable: Sequence[Device]) -> int:
    if name.isdecimal() and len(name) < 10 and int(name) < len(usable):
        return int(name)
    found = (
        []
        if name.isdecimal()
        else [place for place, one in enumerate(usable) if name and name == one.uuid]
    )
    if found:
        return found[0]
    raise UsageProblem(
        f"--gpus {asked}: there is no card {name!r}: {counted(len(usable), 'card')} may be used "
        f"here ({_shown(usable)}). Give `all`, how many, or a list of numbers from 0 to "
        f"{len(usable) - 1} such as `0,1`"
    )


def _refuse_twice(given: str, devices: Sequence[Device]) -> None:
    seen: set[tuple[str, str]] = set()
    for device in devices:
        key = ("", device.uuid) if device.uuid else (device.name, "")
        if key in seen:
            raise UsageProblem(f"{given} names {device.name!r} twice: give each card once")
        seen.add(key)


def _shown(devices: Sequence[Device]) -> str:
    named = [f"{place}: {one.uuid or one.name}" for place, one in enumerate(devices[:SHOWN_MAX])]
    more = f", and {len(devices) - SHOWN_MAX} more" if len(devices) > SHOWN_MAX else ""
    return ", ".join(named) + more
