"""The files of one account at OpenAI: uploaded inputs, and what batches put out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from aiohttp import web

from penstock_simulate.answers import refusals
from penstock_simulate.batches.batch import Batch
from penstock_simulate.batches.folder import Folder
from penstock_simulate.batches.openai.relatives import Relative
from penstock_simulate.batches.refused import Refused

BATCH, OUTPUT = "batch", "batch_output"
EXPIRES_S = 30 * 86_400  # batch files, unless the client says otherwise
CLIENT_EXPIRES_S = (3600, 2_592_000)  # the least and the most that a client may ask for
MAX_FILES = 500_000  # that are remembered: some hundred bytes each


@dataclass(slots=True)
class StoredFile:
    """One file. ``of`` is the batch whose results it holds."""

    id: str
    path: Path
    bytes: int
    created_at: float
    expires_at: float | None
    filename: str
    purpose: str
    of: Batch | None = None

    def is_checked(self, relative: Relative, now: float, step_s: float) -> bool:
        """Whether a batch may be made of it."""
        return not relative.checks_files or self.of is not None or now >= self.created_at + step_s

    def shown(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": int(self.created_at),
            "expires_at": None if self.expires_at is None else int(self.expires_at),
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


def key_in(request: web.Request, relative: Relative) -> str | None:
    """The key of a call, as OpenAI's header has it."""
    if relative.key_header is None:
        return request.headers.get("Authorization")
    key = request.headers.get(relative.key_header)
    return None if key is None else f"Bearer {key}"


class FileStore:
    """By id, in the order of their making. One that has expired is gone."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._files: dict[str, StoredFile] = {}

    def add(
        self, path: Path, now: float, filename: str, purpose: str, expires_s: float | None = None
    ) -> StoredFile:
        """Raises Refused where there are too many."""
        if len(self._files) >= MAX_FILES:
            raise Refused(
                refusals.invalid(
                    f"This simulator holds {MAX_FILES} files and has as many: delete some."
                )
            )
        if expires_s is None and purpose in (BATCH, OUTPUT):
            expires_s = EXPIRES_S
        expires_at = None if expires_s is None else now + expires_s
        file = StoredFile(
            "file-" + uuid4().hex[:22],
            path,
            path.stat().st_size,
            now,
            expires_at,
            filename,
            purpose,
        )
        self._files[file.id] = file
        return file

    def get(self, ident: str, now: float) -> StoredFile:
        """Raises Refused for one that is not there any more, or never was."""
        file = self._files.get(ident)
        if file is not None and not self._has_expired(file, now):
            return file
        raise Refused(refusals.invalid(f"No such File object: {ident}", "id", status=404))

    def get_input(self, ident: object, now: float, relative: Relative, step_s: float) -> StoredFile:
        """What a batch is made from.

        Raises Refused where there is no such file, or it is for something else."""
        file = self._files.get(ident) if isinstance(ident, str) else None
        if file is None or self._has_expired(file, now):
            raise Refused(
                refusals.invalid(
                    f"Invalid 'input_file_id': no such File object: {ident}", "input_file_id"
                )
            )
        if file.purpose != relative.purpose:
            message = (
                f"Invalid file purpose '{file.purpose}': the input of a batch needs "
                f"'{relative.purpose}'."
            )
            raise Refused(refusals.invalid(message, "input_file_id"))
        if not file.is_checked(relative, now, step_s):
            raise Refused(
                refusals.invalid("The input file has not been processed yet.", "input_file_id")
            )
        return file

    def delete(self, file: StoredFile) -> None:
        """Batches that were made from it have it under another name."""
        del self._files[file.id]
        self._folder.remove(file.path)

    def newest(self, now: float, purpose: str | None) -> list[StoredFile]:
        files = [file for file in list(self._files.values()) if not self._has_expired(file, now)]
        return [file for file in reversed(files) if purpose in (None, file.purpose)]

    def _has_expired(self, file: StoredFile, now: float) -> bool:
        if file.expires_at is None or now < file.expires_at:
            return False
        self.delete(file)
        return True
