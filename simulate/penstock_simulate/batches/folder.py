"""Files of a provider on this machine's disk, in a temporary folder that goes with the simulator."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import AsyncIterable
from pathlib import Path

MAX_STORED_BYTES = 64 * 1024**3  # of all files together: what one machine's disk should give to a simulator


class TooLarge(Exception):
    """A file is larger than may be, or there is no room for it."""


class Folder:
    """Writes and removes files under names of its own. Close it when the simulator ends."""

    def __init__(self) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="penstock-simulate-")
        self.path = Path(self._place.name)
        self.stored = 0  # bytes of the files that `keep` counted

    def new(self, ending: str = "") -> Path:
        """A path that no file has."""
        return self.path / (uuid.uuid4().hex + ending)

    def empty(self) -> Path:
        """A new file without bytes."""
        path = self.new()
        path.touch()
        return path

    async def write(self, chunks: AsyncIterable[bytes], most: int) -> Path:
        """A new file with these bytes. Raises TooLarge above ``most``; then nothing is left of it."""
        path = self.empty()
        try:
            await self.extend(path, chunks, most)
        except BaseException:
            self.remove(path)
            raise
        return path

    async def extend(self, path: Path, chunks: AsyncIterable[bytes], most: int) -> None:
        """Put these bytes behind those that are there. Raises TooLarge where it has more than ``most`` then."""
        with path.open("ab") as file:
            size = file.tell()
            async for chunk in chunks:
                size += len(chunk)
                if size > most or self.stored + len(chunk) > MAX_STORED_BYTES:
                    raise TooLarge
                file.write(chunk)
                self.stored += len(chunk)

    def keep(self, path: Path) -> None:
        """Count a file that was written here."""
        self.stored += path.stat().st_size

    def link(self, path: Path) -> Path:
        """Another name for the same file, which outlives the first. It does not count again."""
        other = self.new(path.suffix)
        os.link(path, other)
        return other

    def remove(self, path: Path) -> None:
        """Where it is. A download that goes on keeps its open file."""
        if path.exists():
            self.stored = max(0, self.stored - path.stat().st_size)
            path.unlink()

    def close(self) -> None:
        self._place.cleanup()
