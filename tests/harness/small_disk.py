"""A file system of a test's own, which it may fill or break."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock_cli.chaos import injections


@contextlib.contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[Path]:
    """Mount one at ``place``. The test is skipped where nothing may be mounted."""
    with contextlib.ExitStack() as mounted:
        try:
            mounted.enter_context(injections.small_disk(place, megabytes))
        except injections.CannotBreak as error:
            pytest.skip(str(error))
        yield place


@contextlib.contextmanager
def failing_disk(place: Path, megabytes: int) -> Iterator[FailingDisk]:
    """Mount an image at ``place``. The test is skipped where nothing may be mounted."""
    image = place.with_suffix(".img")
    image.write_bytes(b"")
    os.truncate(image, megabytes << 20)
    made = subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], capture_output=True)
    if made.returncode != 0:
        pytest.skip(f"mkfs.ext4 does not work: {made.stderr!r}")
    place.mkdir()
    disk = FailingDisk(place, image)
    disk.mount()
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@dataclass(frozen=True)
class FailingDisk:
    """A file system that can be made to give up, as ext4 does after an error of its device."""

    place: Path
    image: Path

    def mount(self) -> None:
        command = ["mount", "-o", "loop", str(self.image), str(self.place)]
        mounted = subprocess.run(command, capture_output=True, text=True)
        if mounted.returncode != 0:
            pytest.skip(f"a disk needs the right to mount one: {mounted.stderr.strip()}")

    def fail(self) -> None:
        """Refuse each write from now on, to files that are open as well."""
        subprocess.run(["mount", "-o", "remount,abort", str(self.place)], check=True)

    def mend(self) -> None:
        """Check it, and mount it again."""
        subprocess.run(["umount", "-l", str(self.place)], check=True)
        # 1: it has corrected something
        checked = subprocess.run(["e2fsck", "-f", "-y", str(self.image)], capture_output=True)
        assert checked.returncode in (0, 1), checked.stdout
        self.mount()


def fill(folder: Path) -> Path:
    """Write a file that leaves no byte."""
    filler = injections.fill(folder)
    assert os.statvfs(folder).f_bavail == 0
    return filler
