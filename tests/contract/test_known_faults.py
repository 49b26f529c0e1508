"""The patches that put known faults back are whole: each fits today's code and says what it is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from explore.known_faults import (
    COPIED,
    FIELDS,
    FOLDER,
    NOT_YET,
    ROOT,
    KnownFault,
    known_faults,
)

EVERY = known_faults()


def test_there_are_enough_of_them() -> None:
    """At least 25 faults are put back, each has a number of its own, and nothing else lies there."""
    assert len(EVERY) >= 25
    assert {one.name for one in EVERY} >= NOT_YET
    assert [one.path.suffix for one in EVERY] == [".patch"] * len(EVERY)
    assert [one.path.stem[:2] for one in EVERY] == [f"{n:02}" for n in range(1, len(EVERY) + 1)]


@pytest.mark.parametrize("fault", EVERY, ids=lambda fault: fault.name)
def test_a_fault_says_what_it_is(fault: KnownFault) -> None:
    """The head of a patch has the fault, where it was named, what it breaks and what shows it."""
    assert tuple(fault.told) == FIELDS
    assert all(len(words) > 10 for words in fault.told.values())


def test_every_patch_fits_and_compiles(tmp_path: Path) -> None:
    """Each patch applies alone to the sources as they are, and Python reads what it has made."""
    for fault in EVERY:
        changed = _changed(fault.path)
        assert all(name.startswith(tuple(f"{folder}/" for folder in COPIED)) for name in changed)
        tree = tmp_path / fault.name
        for name in changed:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
        try:
            fault.put_back(tree)
        except subprocess.CalledProcessError:
            pytest.fail(
                f"{fault.path.relative_to(FOLDER.parent)} does not fit {', '.join(changed)} any "
                "more: write the fault anew into that code"
            )
        for name in changed:
            text = (tree / name).read_text("utf-8")
            assert text != (ROOT / name).read_text("utf-8")
            if name.endswith(".py"):
                compile(text, name, "exec")


def _changed(patch: Path) -> list[str]:
    lines = patch.read_text("utf-8").splitlines()
    return [line.removeprefix("+++ b/") for line in lines if line.startswith("+++ b/")]
