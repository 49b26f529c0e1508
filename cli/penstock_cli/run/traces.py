"""A run that is refused leaves nothing behind."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock_cli import files
from penstock_cli.errors import Interrupted, StateBusy
from penstock_cli.run.request import RunRequest


@contextlib.contextmanager
def no_trace(request: RunRequest) -> Iterator[Callable[[], None]]:
    """Remove the folders that were made meanwhile, where an error comes before the job is accepted.

    Call what it gives when the job is there: from then on everything is kept. What was there before
    stays, and so does what another run makes use of.
    """
    state = request.state.expanduser().absolute()
    outs = [] if files.is_remote(request.out) else [Path(request.out).absolute()]
    is_new = not state.exists()
    missing = [
        path for place in (state, *outs) for path in (place, *place.parents) if not path.exists()
    ]
    kept = False

    def keep() -> None:
        nonlocal kept
        kept = True

    try:
        yield keep
    except (Interrupted, StateBusy):
        raise
    except Exception:
        if not kept:
            if is_new:
                shutil.rmtree(state, ignore_errors=True)
            for path in sorted(missing, key=lambda path: -len(path.parts)):
                with contextlib.suppress(OSError):  # others have put something there
                    path.rmdir()
        raise
