"""Rewrites the assertions of one test file as pytest does when it imports it, without running it.

Rewriting costs more than importing, and four processes that begin together do it four times.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

# pytest has no public name for it, and constraints.txt pins the release that has these.
_OWN: Any = import_module("_pytest.assertion.rewrite")


def rewrite(file: Path, config: pytest.Config) -> None:
    """Write the compiled file where pytest looks for it, unless it is there."""
    state = config.stash[_OWN.assertstate_key]
    folder = _OWN.get_cache_dir(file)
    compiled = folder / f"{file.stem}{_OWN.PYC_TAIL}"
    if _OWN._read_pyc(file, compiled, state.trace) is None:
        folder.mkdir(exist_ok=True)
        source_hash, code = _OWN._rewrite_test(file, config)
        _OWN._write_pyc(state, code, source_hash, compiled)
