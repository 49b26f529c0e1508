"""The JSON schema of a Pydantic model that is named by its import path, `package.module:Model`.

A child imports it, with a time limit: a module may do anything when it is imported, and what it
does must not happen here. The schema is what is stored: workers need not have the module.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from typing import IO, Any, Final

from penstock_producer.job.response_schema import SCHEMA_BYTES_MAX

__all__ = ["ModelFault", "is_model_path", "schema_of_model"]

TIMEOUT_S: Final = 60.0  # as long as a hook may take to be imported
WORDS_CHARS: Final = 500  # of what the import said
_PATH: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class ModelFault(ValueError):
    """The model cannot be had. Its text says why."""


def is_model_path(text: str) -> bool:
    """Whether a name is `package.module:Model` and no file."""
    return _PATH.fullmatch(text) is not None and not os.path.exists(text)


def schema_of_model(path: str) -> dict[str, Any]:
    """Raises ModelFault."""
    command = [sys.executable, "-m", "penstock_producer.job.model_schema", path]
    try:
        done = subprocess.run(  # noqa: S603  # our own module, and a path whose form was checked
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ModelFault(f"importing it takes longer than {TIMEOUT_S:g} s") from None
    try:
        said = json.loads(done.stdout)
    except ValueError:  # os._exit, or a crash in an extension
        raise ModelFault(f"importing it ended the process with status {done.returncode}") from None
    if "fault" in said:
        raise ModelFault(str(said["fault"]))
    schema: dict[str, Any] = said["schema"]
    return schema


def _main() -> None:
    """In the child: only what this writes reaches the parent, so a module may print as it likes.

    Modules of the working folder count last, as in workers."""
    with os.fdopen(os.dup(1), "wb") as answer, open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
        if "" in sys.path:
            sys.path.remove("")
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        _answer(answer, sys.argv[1])


def _answer(answer: IO[bytes], path: str) -> None:
    try:
        said = json.dumps({"schema": _schema(path)}).encode()
    except (Exception, SystemExit) as error:
        fault = str(error) if isinstance(error, ModelFault) else f"{type(error).__name__}: {error}"
        said = json.dumps({"fault": fault[:WORDS_CHARS]}).encode()
    if len(said) > SCHEMA_BYTES_MAX:
        said = json.dumps({"fault": f"its schema has more than {SCHEMA_BYTES_MAX} bytes"}).encode()
    answer.write(said)


def _schema(path: str) -> dict[str, Any]:
    from pydantic import TypeAdapter

    name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ModelFault(f"{name} cannot be imported ({type(error).__name__}: {error})") from error
    found = getattr(module, attribute, None)
    if found is None:
        raise ModelFault(f"{attribute} is not in {name}")
    if not isinstance(found, type):
        raise ModelFault(f"{attribute} is {type(found).__name__}, not a class")
    try:
        return TypeAdapter(found).json_schema()
    except Exception as error:
        raise ModelFault(
            f"{attribute} has no JSON schema ({type(error).__name__}: {error})"
        ) from error


if __name__ == "__main__":
    _main()
