"""Lists the GPUs of this machine without CUDA, torch or vLLM.

A process that has started CUDA cannot give GPUs to others.

NVIDIA's are listed by `nvidia-smi -L`, a program of its own that can be cut off when its driver
hangs, else by what the driver shows under /proc. AMD's are the nodes of /sys/class/kfd whose device
is here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

__all__ = ["VARIABLES", "Device", "GpusSeen", "Make", "gpus_seen"]

ASK: Final = ("nvidia-smi", "-L")
ASK_TIMEOUT_S: Final = 20.0
"""A driver that is being reset answers late; one that hangs would hold up the start for ever."""
GPUS_MAX: Final = 1024  # more than any machine has: what is beyond is not read
SAID_CHARS: Final = 200
_CARD: Final = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[0-9A-Za-z-]+)\)")
_SLICE: Final = re.compile(r"\s+MIG .*\(UUID: (MIG-[0-9A-Za-z/-]+)\)")

Make = Literal["nvidia", "amd"]
VARIABLES: Final[dict[Make, tuple[str, ...]]] = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
"""Which cards a process may use, by maker; on AMD's vLLM wants both to say the same. The first that
is set counts."""


class Device(NamedTuple):
    """The device that one process can compute on: a card, or a MIG slice of one."""

    name: str  # as the variable takes it: a number, or the UUID of a slice
    uuid: str = ""
    is_slice: bool = False


@dataclass(frozen=True, slots=True)
class GpusSeen:
    """The cards of this machine; ``looked`` says in words what was seen where."""

    make: Make
    devices: tuple[Device, ...]
    looked: str


def gpus_seen(
    proc: Path = Path("/proc"), sys: Path = Path("/sys"), dev: Path = Path("/dev")
) -> GpusSeen:
    """List all GPUs that the machine, or this container, has.

    The variables do not count here."""
    asked = _ask_nvidia()
    devices = () if isinstance(asked, str) else asked
    if devices:
        return GpusSeen("nvidia", devices, f"nvidia-smi lists {len(devices)}")
    said = asked if isinstance(asked, str) else "nvidia-smi lists no card"
    if isinstance(asked, str) and (shown := _shown_by_driver(proc)):
        return GpusSeen("nvidia", shown, f"{said}; {proc}/driver/nvidia/gpus lists {len(shown)}")
    amd = _amd(sys, dev)
    looked = (
        f"{said}; {sys}/class/kfd shows {len(amd) or 'no'} AMD card{'' if len(amd) == 1 else 's'}"
    )
    return GpusSeen("amd" if amd else "nvidia", amd, looked)


def read_list(text: str) -> tuple[Device, ...]:
    """Read what `nvidia-smi -L` prints.

    A GPU that is divided is only used by its slices."""
    found: list[Device] = []
    whole: Device | None = None
    for line in text.splitlines()[: 8 * GPUS_MAX]:
        if card := _CARD.match(line):
            whole = Device(card[1], card[2])
            found.append(whole)
        elif part := _SLICE.match(line):
            if whole is not None and found[-1] is whole:
                found.pop()
            found.append(Device(part[1], part[1], is_slice=True))
    return tuple(found[:GPUS_MAX])


def _ask_nvidia() -> tuple[Device, ...] | str:
    """Return why nothing is known, where nothing is."""
    if shutil.which(ASK[0]) is None:
        return "there is no nvidia-smi"
    try:
        said = subprocess.run(  # noqa: S603 - it is a constant
            ASK, capture_output=True, text=True, errors="replace", timeout=ASK_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"nvidia-smi has not answered within {ASK_TIMEOUT_S:g} s: its driver hangs"
    except OSError as error:
        return f"nvidia-smi cannot be started: {error}"
    if said.returncode != 0:
        return f"nvidia-smi fails: {(said.stderr or said.stdout).strip()[:SAID_CHARS]}"
    return read_list(said.stdout)


def _shown_by_driver(proc: Path) -> tuple[Device, ...]:
    """List the GPUs that NVIDIA's driver shows, in the order of their addresses.

    That is the order of CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    try:
        folders = sorted((proc / "driver/nvidia/gpus").iterdir())[:GPUS_MAX]
    except OSError:
        return ()
    return tuple(Device(str(number)) for number in range(len(folders)))


def _amd(sys: Path, dev: Path) -> tuple[Device, ...]:
    """List AMD's GPUs: the nodes that compute and whose device file is here.

    A container sees the nodes of all GPUs, and device files of its own only."""
    found = 0
    nodes = sys / "class/kfd/kfd/topology/nodes"
    try:
        folders = sorted(nodes.iterdir(), key=lambda folder: (len(folder.name), folder.name))[
            :GPUS_MAX
        ]
    except OSError:
        return ()
    for folder in folders:
        try:
            text = (folder / "properties").read_text()
        except OSError:
            continue  # of a card that is not this container's
        facts = dict(line.split()[:2] for line in text.splitlines() if len(line.split()) > 1)
        if (
            facts.get("simd_count", "0") != "0"
            and (dev / "dri" / f"renderD{facts.get('drm_render_minor')}").exists()
        ):
            found += 1
    return tuple(Device(str(number)) for number in range(found))
