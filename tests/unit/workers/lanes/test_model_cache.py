"""The cache of files that come from elsewhere: whole or not there, once per machine, and never
larger than it may be."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock_workers.errors import CacheFull, FilesChanged, FilesUnusable, StoreAway
from penstock_workers.lanes import model_stores
from penstock_workers.lanes.model_cache import FileCache, FileLock, Wanted
from penstock_workers.lanes.model_stores import FolderStore, StoredFile

KIB = 1024
MOST = 100 * KIB


class Place:
    """A store whose files are made of their names' first letters.

    ``each`` is called before each part."""

    place = "s3://models"

    def __init__(self, each: Callable[[], None] = lambda: None) -> None:
        self.each = each
        self.parts = 0

    def files(self) -> list[StoredFile]:
        raise AssertionError("a cache lists nothing")

    def read(self, file: StoredFile, offset: int, length: int) -> bytes:
        self.parts += 1
        self.each()
        return file.path[:1].encode() * length


def wanted(place: Place, name: str, size: int, version: str = "1") -> Wanted:
    files = (
        StoredFile(f"{name}/w", size, version, 0.0),
        StoredFile(f"{name}/config/c", 10, version, 0.0),
    )
    return Wanted(place, f"s3://models/{name}", files, inside=f"{name}/")


@pytest.fixture
def cache(tmp_path: Path) -> FileCache:
    return FileCache(tmp_path / "cache", MOST)


def left(folder: Path) -> set[str]:
    """Everything in the cache, but for the lock of the whole."""
    return {path.name for path in folder.iterdir()} - {"cache.lock"}


def test_files_are_fetched_once_and_kept(cache: FileCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts, each in its place; a second worker finds them.

    Another version of them is fetched anew."""
    monkeypatch.setattr(model_stores, "PART_BYTES", KIB)
    place, noted = Place(), list[int]()
    entry = cache.take(wanted(place, "a", 10 * KIB + 1), noted.append)
    assert (entry.folder / "w").read_bytes() == b"a" * (10 * KIB + 1)
    assert (entry.folder / "config" / "c").read_bytes() == b"a" * 10
    assert (place.parts, sorted(noted)[-1]) == (12, 10 * KIB + 11)
    assert cache.take(wanted(place, "a", 10 * KIB + 1)).folder == entry.folder
    assert place.parts == 12
    assert cache.take(wanted(place, "a", 10 * KIB + 1, "2")).folder != entry.folder
    assert place.parts == 24


def test_what_a_killed_download_left_is_not_taken_for_whole(
    cache: FileCache, tmp_path: Path
) -> None:
    """Neither its unfinished folder nor its mark of room: both are replaced by the next
    download."""
    place = Place()
    asked = wanted(place, "a", KIB)
    folder = tmp_path / "cache"
    (folder / f"{asked.key}.part").mkdir(parents=True)
    (folder / f"{asked.key}.part" / "w").write_bytes(b"half")
    (folder / f"{asked.key}.lock").write_text('{"bytes": 102400}')
    entry = cache.take(asked)
    assert (entry.folder / "w").read_bytes() == b"a" * KIB
    assert left(folder) == {asked.key, f"{asked.key}.lock"}


@pytest.mark.parametrize("error", [StoreAway("away"), FilesChanged("changed")])
def test_a_download_that_fails_leaves_nothing(
    cache: FileCache, tmp_path: Path, error: FilesUnusable
) -> None:
    """Its error comes as it is, its files are gone, and its room is free for others."""

    def fail() -> None:
        raise error

    asked = wanted(Place(fail), "a", 90 * KIB)
    with pytest.raises(type(error)):
        cache.take(asked)
    assert left(tmp_path / "cache") == {f"{asked.key}.lock"}
    cache.take(wanted(Place(), "b", 90 * KIB))


def test_an_entry_that_lost_a_file_is_fetched_again(cache: FileCache) -> None:
    """A person may clear a disk by hand."""
    place = Place()
    entry = cache.take(wanted(place, "a", KIB))
    entry.release()
    (entry.folder / "w").unlink()
    assert (cache.take(wanted(place, "a", KIB)).folder / "w").read_bytes() == b"a" * KIB


def test_room_is_made_at_the_cost_of_what_was_used_least(cache: FileCache, tmp_path: Path) -> None:
    """The entry that was taken longest ago goes first; one that is in use stays, however old."""
    place = Place()
    names = ("used", "old", "new")
    entries = {name: cache.take(wanted(place, name, 30 * KIB)) for name in names}
    entries["old"].release()
    entries["new"].release()
    for age, name in enumerate(names):
        os.utime(entries[name].folder.with_suffix(".lock"), (1_000 + age, 1_000 + age))
    cache.take(wanted(place, "more", 30 * KIB))
    kept = {name for name, entry in entries.items() if entry.folder.is_dir()}
    assert kept == {"used", "new"}
    assert not any(path.suffix in (".gone", ".part") for path in (tmp_path / "cache").iterdir())


def test_a_cache_that_is_in_use_says_that_it_is_full(cache: FileCache) -> None:
    """With what it holds, what it may hold, and what to change; the entry in use is whole."""
    used = cache.take(wanted(Place(), "a", 80 * KIB))
    with pytest.raises(CacheFull, match=r"no room for s3://models/b .* gpu.cache_bytes"):
        cache.take(wanted(Place(), "b", 80 * KIB))
    with pytest.raises(CacheFull, match=r"gpu.cache_bytes allows .*: raise it"):
        cache.take(wanted(Place(), "c", 2 * MOST))
    assert (used.folder / "w").stat().st_size == 80 * KIB


def test_what_is_on_its_way_counts(cache: FileCache) -> None:
    """Two downloads at a time do not exceed together what each alone may."""
    began, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        began.set()
        assert go_on.wait(10)

    first = threading.Thread(target=cache.take, args=(wanted(Place(slow), "a", 80 * KIB),))
    first.start()
    try:
        assert began.wait(10)
        with pytest.raises(CacheFull, match="no room"):
            cache.take(wanted(Place(), "b", 80 * KIB))
    finally:
        go_on.set()
        first.join()


def test_one_of_many_fetches_and_the_others_wait(
    cache: FileCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of one machine that want the same files at once read them once from where they
    lie."""
    monkeypatch.setattr("penstock_workers.lanes.model_cache.ASK_AGAIN_S", 0.01)
    began, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        began.set()
        assert go_on.wait(10)

    place = Place(slow)
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(cache.take(wanted(place, "a", KIB)).folder))
        for _ in range(8)
    ]
    threads[0].start()
    assert began.wait(10)
    for thread in threads[1:]:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert len(found) == 8
    assert len(set(found)) == 1
    assert place.parts == 2


def test_a_full_disk_says_so(
    cache: FileCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything travels, and with nothing left behind."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    place = Place()
    asked = wanted(place, "a", KIB)
    with pytest.raises(CacheFull, match=r"the disk of .* is full"):
        cache.take(asked)
    assert place.parts == 0
    assert left(tmp_path / "cache") == {f"{asked.key}.lock"}


def test_a_cache_that_cannot_be_made_names_the_setting(tmp_path: Path) -> None:
    """A file where the folder should be."""
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheFull, match=r"gpu.cache_dir: .* cannot be made"):
        FileCache(tmp_path / "file" / "cache", MOST).take(wanted(Place(), "a", KIB))


def test_a_lock_whose_file_was_removed_is_no_lock(tmp_path: Path) -> None:
    """Who waited for an entry that was removed meanwhile must not hold a lock that the next one
    does not see."""
    lock = FileLock(tmp_path / "a.lock")
    (tmp_path / "a.lock").unlink()
    assert not lock.hold()
    assert not lock.share()
    with FileLock(tmp_path / "a.lock") as new, FileLock(tmp_path / "a.lock") as other:
        assert new.hold()
        assert not other.share()


def test_a_folder_is_listed_and_read_as_it_was(tmp_path: Path) -> None:
    """Files of its folders, without hidden ones; one that changed since is refused."""
    (tmp_path / "legal").mkdir()
    (tmp_path / ".copying").mkdir()
    for path in ("legal/w", "legal/.w.tmp", ".copying/w", "loose"):
        (tmp_path / path).write_bytes(b"12345")
    store = FolderStore(tmp_path)
    (file,) = store.files()
    assert (file.path, file.size) == ("legal/w", 5)
    assert store.read(file, 1, 3) == b"234"
    (tmp_path / "legal/w").write_bytes(b"54321x")
    with pytest.raises(FilesChanged):
        store.read(file, 1, 3)
    (tmp_path / "legal/w").unlink()
    with pytest.raises(FilesChanged):
        store.read(file, 1, 3)


def test_a_folder_gives_nothing_from_outside_of_it(tmp_path: Path) -> None:
    """A link to another place is refused, a pipe is no file, and a folder that is gone is an
    outage."""
    (tmp_path / "secret").write_text("key")
    (tmp_path / "in/legal").mkdir(parents=True)
    (tmp_path / "in/legal/w").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "in/legal/pipe")
    store = FolderStore(tmp_path / "in")
    (file,) = store.files()
    with pytest.raises(FilesUnusable, match="points outside"):
        store.read(file, 0, 3)
    with pytest.raises(StoreAway, match="cannot be read"):
        FolderStore(tmp_path / "gone").files()
