"""The files of packed batches: the input, the request bodies, and the document of each id.

They are a cache: what they hold is made again where a disk is gone, see ``packer.py``. Which
documents a batch has is kept in SQL besides, so that answers that were paid for find them whatever
became of the source. A folder has its name only once all of it is on the disk.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import shutil
import time
import zlib
from collections.abc import Collection, Container, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from penstock_ledger import ItemKey, KeptDocument, Remainder, kept_documents

_SAFE: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_DIGEST: Final = "h-"
_DIGEST_BYTES: Final = 16  # 128 bits: two documents of one job do not share them by chance


def custom_id(doc_id: str, most: int) -> str:
    """Return the document id where a provider takes it, else a digest.

    Providers take `[A-Za-z0-9_-]`, up to a length. No id of a document looks like a digest."""
    if (
        len(doc_id) <= most
        and _SAFE.fullmatch(doc_id) is not None
        and not doc_id.startswith(_DIGEST)
    ):
        return doc_id
    digest = hashlib.sha256(doc_id.encode(errors="surrogatepass")).digest()[:_DIGEST_BYTES]
    return _DIGEST + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


INPUT: Final = "input.jsonl"
BODIES: Final = "bodies"
IDS: Final = "ids.jsonl"
LEFT_S: Final = 3_600.0  # files that belong to no batch are removed after this
# of the ids of one batch in SQL, compressed; a batch with more keeps none there
KEPT_BYTES_MAX: Final = 8 * 1024 * 1024
_TOGETHER: Final = 500  # ids that are compressed in one call
# of zlib's levels: ids that follow one another are a tenth of their size all the same
_FAST: Final = 1
_UNDONE: Final = ".part"
_OURS: Final = re.compile(r"[0-9a-f]{32}(-\d+\.part)?")


def _made(path: Path) -> int:
    """Make a file for its owner only, open for writing."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)


USED: Final = 6  # numbers that tell what earlier batches used, of a document


class PackedDocument(NamedTuple):
    """One document of a batch: where it comes from, and what earlier batches used up on it."""

    custom_id: str
    doc_id: str
    position: str
    attempts: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost_microusd: int
    offset: int = 0  # of its request in the file of bodies
    size: int = 0  # 0: the request is lost
    escalations: int = 0

    @property
    def used(self) -> tuple[int, ...]:
        """Return what earlier batches used."""
        return (
            self.attempts,
            self.calls,
            self.prompt_tokens,
            self.completion_tokens,
            self.cost_microusd,
            self.escalations,
        )

    def before(self, key: ItemKey) -> Remainder:
        """Return the document as it was packed, with what earlier batches used up on it."""
        return Remainder(
            key,
            self.position,
            self.attempts,
            self.calls,
            self.prompt_tokens,
            self.completion_tokens,
            self.cost_microusd,
            "",
            escalations=self.escalations,
        )


def packed_before(kept: bytes, id_chars: int) -> Iterator[PackedDocument]:
    """Yield the documents of a batch in the order of its lines, as a ``PackedWriter`` kept them.

    ``id_chars`` is how long the longest custom_id of its provider is."""
    for document in kept_documents(kept):
        name = custom_id(document.doc_id, id_chars)
        # of earlier releases, which kept no escalations, the last is left out
        used = (*document.used, *(0,) * (USED - len(document.used)))
        yield PackedDocument(name, document.doc_id, document.position, *used[:-1])._replace(
            escalations=used[-1]
        )


class PackedBatch:
    """The folder of one batch. Any thread, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def input(self) -> Path:
        return self._folder / INPUT

    @property
    def is_there(self) -> bool:
        return self._folder.is_dir()

    def documents(self) -> Iterator[PackedDocument]:
        """Yield the documents in the order of the input's lines."""
        with (self._folder / IDS).open("rb") as lines:
            for line in lines:
                yield PackedDocument(*orjson.loads(line))

    def by_id(self) -> dict[str, PackedDocument]:
        """Return all documents: what is held in memory of a batch while its answers are read."""
        return {document.custom_id: document for document in self.documents()}

    def bodies(self, documents: Collection[PackedDocument]) -> list[bytes]:
        """Return the requests of these documents, in their order; empty where one is lost."""
        found = []
        with (self._folder / BODIES).open("rb") as file:
            for document in documents:
                file.seek(document.offset)
                found.append(file.read(document.size))
        return found

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class PackedFolder:
    """The folder of a worker's packed batches."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def open(self) -> None:
        """Make the folder where there is none. Raises OSError."""
        self._place.mkdir(parents=True, exist_ok=True, mode=0o700)

    def sweep(self, wanted: Container[str]) -> None:
        """Remove what belongs to no ``wanted`` batch and was left for some time.

        Other workers may write here."""
        long_ago = time.time() - LEFT_S
        for folder in self._place.iterdir():
            with contextlib.suppress(OSError):
                if (
                    folder.name not in wanted
                    and _OURS.fullmatch(folder.name)
                    and folder.stat().st_mtime < long_ago
                ):
                    shutil.rmtree(folder, ignore_errors=True)

    def batch(self, tag: str) -> PackedBatch:
        return PackedBatch(self._place / tag)

    def writer(self, tag: str) -> PackedWriter:
        return PackedWriter(self._place / tag, self._place / f"{tag}-{os.getpid()}{_UNDONE}")

    def rename(self, tag: str, to: str) -> None:
        """Give the files of a batch to the one that takes its place.

        Where they are gone they are made again."""
        if self.batch(tag).is_there:
            (self._place / tag).rename(self._place / to)


class KeptLines:
    """The documents of a batch as SQL keeps them: lines, compressed as they come."""

    def __init__(self) -> None:
        self._compress = zlib.compressobj(_FAST)
        self._lines = list[bytes]()  # that are not compressed yet
        self._pieces, self._bytes = list[bytes](), 0

    def add(self, line: bytes) -> None:
        self._lines.append(line)
        if len(self._lines) >= _TOGETHER:
            self._pack()

    def end(self) -> bytes | None:
        """Return all of them; None where they are too much for SQL. Nothing is added later."""
        self._pack(ends=True)
        return b"".join(self._pieces) if self._bytes <= KEPT_BYTES_MAX else None

    def _pack(self, *, ends: bool = False) -> None:
        lines, self._lines = b"".join(line + b"\n" for line in self._lines), []
        if self._bytes > KEPT_BYTES_MAX:
            return
        piece = self._compress.compress(lines) + (self._compress.flush() if ends else b"")
        self._bytes += len(piece)
        self._pieces.append(piece)


class PackedWriter:
    """Writes one batch; ``close`` makes it whole, ``discard`` takes it away."""

    def __init__(self, folder: Path, undone: Path) -> None:
        self._folder, self._undone = folder, undone
        shutil.rmtree(undone, ignore_errors=True)
        undone.mkdir(parents=True, mode=0o700)
        self._files = ExitStack()
        self._input, self._bodies, self._ids = (
            self._files.enter_context(os.fdopen(_made(undone / name), "wb"))
            for name in (INPUT, BODIES, IDS)
        )
        self._names = set[str]()
        self._kept = KeptLines()
        self.requests = self.size = self._offset = 0

    def has(self, custom_id: str) -> bool:
        return custom_id in self._names

    def add(self, document: PackedDocument, line: bytes, body: bytes) -> None:
        """Add a ``document``, which has no place in the file of bodies yet."""
        self._input.write(line)
        offset, size = self.add_body(body)
        self.add_name(document._replace(offset=offset, size=size))
        used = document.used
        self._kept.add(
            KeptDocument(document.doc_id, document.position, used if any(used) else ()).to_line()
        )
        self.size += len(line)

    def add_body(self, body: bytes) -> tuple[int, int]:
        """Write a request without a line of the input; return its place and its size."""
        place = self._offset
        self._bodies.write(body)
        self._offset += len(body)
        return place, len(body)

    def add_name(self, document: PackedDocument) -> None:
        """Write a document without a line of the input."""
        self._ids.write(orjson.dumps([*document]) + b"\n")
        self._names.add(document.custom_id)
        self.requests += 1

    def kept(self) -> bytes | None:
        """Return the batch's documents for SQL; None where they are too much for that.

        Called once, when all were added."""
        return self._kept.end()

    def close(self) -> None:
        """Have all of it on the disk when this returns."""
        for file in (self._input, self._bodies, self._ids):
            file.flush()
            os.fsync(file.fileno())
        self._files.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._undone.rename(self._folder)
        folder = os.open(self._folder.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def discard(self) -> None:
        self._files.close()
        shutil.rmtree(self._undone, ignore_errors=True)
