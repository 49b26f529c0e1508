"""Whether the hooks of a job can be imported, found out before anything is started.

A child does it, with a time limit: a module may do anything when it is imported, and what it does
must not happen here.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterable
from typing import Literal

from penstock_cli.errors import UsageProblem

TIMEOUT_S = 60.0  # as long as a hook itself may take; a module that loads a model is done by then
_MARK = "penstock hook check: "  # a module may print as well

Fault = tuple[Literal["module", "function"], str]  # what cannot be had, and why


def check_hooks(paths: Iterable[str | None], *, workers_elsewhere: bool = False) -> None:
    """Raise UsageProblem for a hook that is not there.

    With ``workers_elsewhere`` a module that cannot be imported here is accepted: the workers'
    machines may have it.
    """
    wanted = [path for path in paths if path is not None]
    if not wanted:
        return
    for path, fault in zip(wanted, _faults(wanted), strict=True):
        if fault is None or (workers_elsewhere and fault[0] == "module"):
            continue
        raise UsageProblem(
            f"hook {path}: {fault[1]}; correct the path, or the module (modules here count, too)"
        )


def _faults(paths: list[str]) -> list[Fault | None]:
    command = [sys.executable, "-m", "penstock_cli.job.hooks", *paths]
    try:
        done = subprocess.run(  # noqa: S603  # our own module, and paths whose form the spec has checked
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return [("module", f"importing it takes longer than {TIMEOUT_S:g} s")] * len(paths)
    _, mark, found = done.stdout.rpartition(_MARK)
    if not mark:  # os._exit, a crash in an extension
        return [("module", f"importing it ended the process with status {done.returncode}")] * len(
            paths
        )
    return [None if fault is None else (fault[0], fault[1]) for fault in json.loads(found)]


def _fault(path: str) -> Fault | None:
    name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        return "module", f"{name} cannot be imported ({type(error).__name__}: {error})"
    hook = getattr(module, attribute, None)
    if callable(hook):
        return None
    return (
        "function",
        f"{attribute} is not in {name}"
        if hook is None
        else f"{attribute} is {type(hook).__name__}, not a function",
    )


def _main() -> None:
    """Check in the child process: the working folder counts last, as in workers."""
    if "" in sys.path:
        sys.path.remove("")
    sys.path.append("")
    faults = [_fault(path) for path in sys.argv[1:]]
    sys.stdout.write(_MARK + json.dumps(faults))


if __name__ == "__main__":
    _main()
