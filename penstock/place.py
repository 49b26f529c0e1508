"""A job of a call is kept at a place where the same call finds it again.

BASE/.gitignore               keeps the folder out of version control
BASE/NAME-DIGEST/             one folder for each job; the digest names rows and options
    rows-….jsonl              the rows, as the engine reads them
    output.jsonl errors.jsonl report.json
    state/                    the state folder of `penstock run`: ledger, queue, logs
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from penstock.errors import BadCall, RunFailed

BASE: Final = ".penstock"  # in the working folder, where a call names no other
DIGEST_CHARS: Final = 12
NAME_CHARS: Final = 40
PRIVATE: Final = 0o700


def base_folder(state: str | os.PathLike[str] | None) -> Path:
    """Return the folder of all jobs, made where there is none. Raises BadCall."""
    base = Path(BASE if state is None else state).expanduser().absolute()
    try:
        base.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
        ignored = base / ".gitignore"
        if not ignored.exists():
            ignored.write_text("*\n")
    except OSError as error:
        raise BadCall(
            f"{base} cannot be written ({error.strerror}), and what is paid is kept there; name "
            "another folder: state='…'"
        ) from error
    return base


def job_name(name: str, identity: Mapping[str, Any]) -> str:
    """Return the key of the job that these rows and options are; ``name`` is for people."""
    text = json.dumps(identity, sort_keys=True, default=str).encode()
    return f"{safe_name(name)}-{hashlib.sha256(text).hexdigest()[:DIGEST_CHARS]}"


def safe_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:NAME_CHARS] or "rows"


def fingerprint(path: Path) -> str:
    """Return what tells the content of a file, or of a folder by names, sizes and times."""
    digest = hashlib.sha256()
    try:
        if path.is_file():
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        for one in sorted(path.rglob("*")):
            found = one.stat()
            digest.update(f"{one}\0{found.st_size}\0{found.st_mtime_ns}\n".encode())
    except OSError as error:
        raise BadCall(f"{path} cannot be read ({error.strerror})") from error
    return digest.hexdigest()


def forget(folder: str | os.PathLike[str]) -> None:
    """Remove all that is kept of a job: the same call begins anew, and pays again.

    Raises BadCall for a folder that is none of a job, and RunFailed while a run works in it.
    """
    place = Path(folder)
    if not (place / "state" / "penstock.db").is_file():
        raise BadCall(f"{place} is no folder of a job; answers.place names it")
    from penstock_cli.errors import StateBusy
    from penstock_cli.state import StateFolder

    try:
        with StateFolder(place.absolute() / "state").locked():
            shutil.rmtree(place)
    except StateBusy as error:
        raise RunFailed(str(error)) from None
