"""Tab in a real shell completes commands, options, their values and jobs."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock_producer import Producer

PATIENCE_S = 120.0
# What is typed before Tab, and the words that the shell has then.
TYPED = {
    "a command": ("stat", "status"),
    "an option": ("run --over-b", "run --over-budget"),
    "a value": ("run --over-budget ref", "run --over-budget refuse"),
    "a job": ("report nig", "report night"),
}
# Interactive, and without a configuration of the user.
INTERACTIVE = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], ""),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -D; "),
}


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a shell with `penstock` on its path, and a ledger with a job, `night`, and
    one whose name a shell would run."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "docs.jsonl").write_text('{"id": "a", "text": "one"}\n')
    url = f"sqlite:///{folder}/ledger.db"
    with Producer(database_url=url) as producer:
        for key in ("night", "night $(touch ran)"):
            spec = {"prompt": "Summarise: {text}", "model": "m"}
            producer.submit(folder / "docs.jsonl", spec, job_key=key)
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "PWD": str(folder),
        "TERM": "dumb",
        "PENSTOCK_DATABASE_URL": url,
    }


def after_tab(shell: str, surroundings: dict[str, str]) -> dict[str, str]:
    """The words that Penstock gets after Tab and Enter, in each case: a function of the shell in
    its place says them, and the script asks the real one."""
    command, before = INTERACTIVE[shell]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=surroundings,
        cwd=surroundings["HOME"],
        start_new_session=True,
    )
    os.close(theirs)
    try:
        says = 'penstock() { echo "[""$*""]"; }'
        os.write(
            ours, f"{before}source <(penstock completion {shell}); {says}; echo r''eady\n".encode()
        )
        read_until(ours, r"^ready")
        found = {}
        for case, (typed, _) in TYPED.items():
            os.write(ours, f"penstock {typed}\t\n".encode())
            found[case] = read_until(ours, r"^\[(.*?) ?\]")
        return found
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(terminal: int, pattern: str) -> str:
    seen, deadline = "", time.monotonic() + PATIENCE_S
    while (found := re.search(pattern, seen, re.MULTILINE)) is None:
        ready, _, _ = select.select([terminal], [], [], deadline - time.monotonic())
        assert ready, f"not seen: {pattern} in {seen!r}"
        seen += os.read(terminal, 65536).decode(errors="replace").replace("\r", "\n")
    return found[found.lastindex or 0]


@pytest.mark.parametrize("shell", INTERACTIVE)
def test_tab_completes(shell: str, surroundings: dict[str, str]) -> None:
    """In a terminal, with nothing but `penstock completion SHELL` read by the shell."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here: apt-get install {shell}")
    assert after_tab(shell, surroundings) == {case: wanted for case, (_, wanted) in TYPED.items()}


def test_fish_completes(surroundings: dict[str, str]) -> None:
    """Fish says itself what it would offer; values come without files, and where nothing is known
    files are offered."""
    if shutil.which("fish") is None:
        pytest.skip("no fish here: apt-get install fish")
    asked = "; ".join(f"complete --do-complete 'penstock {typed}'" for typed, _ in TYPED.values())
    asked += "; complete --do-complete 'penstock run doc'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"penstock completion fish | source; {asked}"],
        env=surroundings,
        cwd=surroundings["HOME"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    offered = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert offered == [*(wanted.split()[-1] for _, wanted in TYPED.values()), "docs.jsonl"]


def test_a_database_that_is_away_is_not_waited_for(tmp_path: Path) -> None:
    """Nothing is offered and nothing is said, with no configuration and with a server that never
    answers."""
    asks = {
        **os.environ,
        "_PENSTOCK_COMPLETE": "complete_bash",
        "COMP_WORDS": "penstock status ni",
        "COMP_CWORD": "2",
    }
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for url in (None, f"postgresql://me:pw@127.0.0.1:{port}/d", "nonsense"):
            configured = {} if url is None else {"PENSTOCK_DATABASE_URL": url}
            done = subprocess.run(
                [Path(sys.executable).parent / "penstock"],
                env={**asks, **configured},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
            )
            assert (done.stdout.strip(), done.stderr) == ("", "")
