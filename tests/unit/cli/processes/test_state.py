"""The state folder, its lock, and interrupts."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock_cli.errors import Interrupted, StateBusy, UsageProblem
from penstock_cli.processes.signals import Interrupts
from penstock_cli.settings import child_environment
from penstock_cli.show.terminal import Repetition, remember, remembered
from penstock_cli.state import StateFolder, write_private
from penstock_ledger import open_database


def test_a_state_folder_is_private(tmp_path: Path) -> None:
    """Other users of the machine can read neither results nor requests nor the queue."""
    folder = StateFolder.create(tmp_path / "a" / "state")
    for path in (folder.root, folder.redis, folder.logs, folder.figures):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_state_folder_that_was_open_is_closed(tmp_path: Path) -> None:
    """Made by hand before, or by an earlier release: others lose their rights to all of it, also to
    what is deep inside, and what a link leads to is left alone."""
    umask = os.umask(0o022)
    try:
        outside = tmp_path / "outside.txt"
        outside.write_text("theirs")
        root = tmp_path / "state"
        (root / "files" / "deep").mkdir(parents=True)
        (root / "files" / "deep" / "upload.jsonl").write_text("{}")
        (root / "link").symlink_to(outside)
        folder = StateFolder.create(root)
        write_private(folder.figures / "job.json", "{}")
        with open_database(folder.database_url).engine.connect() as connection:
            connection.exec_driver_sql("CREATE TABLE a (b)")
            made = [path for path in root.rglob("*") if not path.is_symlink()]
            assert {folder.database, folder.root / "penstock.db-wal"} <= set(made)
            assert [path for path in made if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
        assert stat.S_IMODE(outside.stat().st_mode) == 0o644
        assert stat.S_IMODE((root / "files" / "deep" / "upload.jsonl").stat().st_mode) == 0o600
    finally:
        os.umask(umask)


def test_two_runs_on_one_state_are_kept_apart(tmp_path: Path) -> None:
    """The second one is refused with the pid of the first, and may go on once the first has
    ended."""
    folder = StateFolder.create(tmp_path)
    with folder.locked(), pytest.raises(StateBusy, match=rf"pid {os.getpid()}\)"), folder.locked():
        pass
    with folder.locked():
        pass


def test_a_killed_holder_frees_the_lock(tmp_path: Path) -> None:
    """kill -9 leaves no lock behind."""
    folder = StateFolder.create(tmp_path)
    code = (
        "import sys, time; from pathlib import Path; from penstock_cli.state import StateFolder\n"
        "with StateFolder.create(Path(sys.argv[1])).locked(): print('held', flush=True); "
        "time.sleep(600)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(StateBusy, match=str(holder.pid)), folder.locked():
        pass
    holder.kill()
    holder.communicate()
    with folder.locked():
        pass


def test_unusable_state_folders_are_explained(tmp_path: Path) -> None:
    """A file in the way, no state at all, and the state one level deeper each get their own
    advice."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageProblem, match="cannot make this folder"):
        StateFolder.create(tmp_path / "file")
    with pytest.raises(UsageProblem, match="no state of a local run there"):
        StateFolder.existing(tmp_path)
    deeper = StateFolder.create(tmp_path / ".penstock")
    deeper.database.touch()
    with pytest.raises(UsageProblem, match=r"Did you mean --state .*\.penstock\?"):
        StateFolder.existing(tmp_path)


def test_interrupts_strike_until_deferred_and_are_counted_after() -> None:
    """During checks Ctrl-C ends at once; during work the first asks and the second hurries."""
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGINT)
        interrupts.count = 0
        interrupts.defer()
        signal.raise_signal(signal.SIGTERM)
        assert (interrupts.asked, interrupts.hurry()) == (True, False)
        signal.raise_signal(signal.SIGINT)
        assert interrupts.hurry()
    assert signal.getsignal(signal.SIGINT) is before


def test_the_command_of_a_job_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is printed fit for a shell, with its folder only where that is another one."""
    folder = StateFolder.create(tmp_path / "state")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["penstock", "run", "a b.jsonl", "--prompt", "Say {text}"])
    remember(folder, "id1", Repetition())
    assert remembered(folder, "id1") == "penstock run 'a b.jsonl' --prompt 'Say {text}'"
    monkeypatch.chdir("/")
    assert remembered(folder, "id1").startswith(f"cd {tmp_path} && penstock run")
    assert "repeated" in remembered(folder, "unknown")


def test_children_get_exactly_the_settings_of_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PENSTOCK_ variable that the parent has merged already is not merged a second time."""
    monkeypatch.setenv("PENSTOCK_PROVIDERS__OTHER__RPM", "5")
    monkeypatch.setenv("MY_KEY", "secret")
    environment = child_environment({"PENSTOCK_LANE": "api"})
    assert environment["PENSTOCK_LANE"] == "api"
    assert environment["MY_KEY"] == "secret"
    assert "PENSTOCK_PROVIDERS__OTHER__RPM" not in environment
