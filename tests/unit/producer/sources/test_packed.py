"""Compressed sources: plain offsets over gzip and zstd, members, damage and bombs."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
import struct
import sys
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock_producer.accepting.survey import survey
from penstock_producer.errors import BadReference, SourceChanged, SourceError, SourceUnavailable
from penstock_producer.job.spec import JobSpec
from penstock_producer.sources import Document, open_source
from penstock_producer.sources.blobs import unpacked
from penstock_producer.sources.blobs.local import LocalFile
from penstock_producer.sources.blobs.unpacked import Unpacked

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SPEC = JobSpec(prompt="{text}", model="m")
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": lambda data: zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1}),
}
MEBIBYTE = 1024 * 1024


def rows(count: int, size: int = 0) -> list[bytes]:
    """Rows whose texts do not compress."""
    noise = random.Random(5)
    return [
        json.dumps({"id": f"d{number}", "text": f"t{noise.randbytes(size // 2).hex()}"}).encode()
        + b"\n"
        for number in range(count)
    ]


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("members", [1, 7])
def test_packed_rows_are_those_of_the_plain_file(tmp_path: Path, ending: str, members: int) -> None:
    """Documents, lines, cursors and positions of a packed file are those of the file unpacked, in
    one member or several."""
    lines = rows(50, 40)
    parts = [b"".join(lines[at::1][: 50 // members + 1]) for at in range(0, 50, 50 // members + 1)]
    (tmp_path / "plain.jsonl").write_bytes(b"".join(parts))
    (tmp_path / f"packed.jsonl.{ending}").write_bytes(b"".join(map(PACKERS[ending], parts)))
    plain = list(open_source(tmp_path / "plain.jsonl", SPEC).documents({}))
    found = survey(open_source(tmp_path / f"packed.jsonl.{ending}", SPEC), SPEC)
    packed = open_source(json.loads(json.dumps(found.pin)), SPEC)
    assert list(packed.documents({})) == plain
    for index, row in enumerate(plain):
        assert list(packed.documents(row.cursor)) == plain[index + 1 :]


@pytest.mark.parametrize("ending", PACKERS)
def test_positions_are_fetched_in_any_order_and_from_threads(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch finds its document ahead of the last one, behind it, and beyond what is kept, also
    from several threads."""
    monkeypatch.setattr(unpacked, "KEPT_BEHIND", 20_000)
    path = tmp_path / f"in.jsonl.{ending}"
    lines = rows(200, 1000)
    path.write_bytes(PACKERS[ending](b"".join(lines[:90])) + PACKERS[ending](b"".join(lines[90:])))
    source = open_source(survey(open_source(path, SPEC), SPEC).pin, SPEC)
    wanted = [row for row in source.documents({}) if isinstance(row, Document)]
    random.Random(3).shuffle(wanted)
    with ThreadPoolExecutor(4) as threads:
        found = threads.map(lambda row: source.fetch(row.position).body, wanted)
    assert list(found) == [row.body for row in wanted]
    with pytest.raises(BadReference):
        source.fetch("999999999:10")


@pytest.mark.parametrize("ending", PACKERS)
def test_reading_begins_at_the_member_before_the_offset(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file of many members only those from the cursor on are read again; the pin keeps a
    bounded number of them."""
    monkeypatch.setattr(unpacked, "_FIRST_SPACING", 1)
    monkeypatch.setattr(unpacked, "MEMBERS_KEPT", 8)
    lines = rows(60, 400)
    path = tmp_path / f"in.jsonl.{ending}"
    path.write_bytes(b"".join(map(PACKERS[ending], lines)))
    pin = survey(open_source(path, SPEC), SPEC).pin
    assert 3 <= len(pin["members"]) <= 8
    asked: list[int] = []

    class Watched(LocalFile):
        def chunks(self, offset: int):  # type: ignore[no-untyped-def] # as the base
            asked.append(offset)
            return super().chunks(offset)

    codec = {"gz": "gzip", "zst": "zstd"}[ending]
    offset = sum(map(len, lines[:50]))
    assert b"".join(Unpacked(Watched(path, pin), codec, pin).chunks(offset)) == b"".join(lines[50:])
    assert asked[0] > path.stat().st_size // 2


def test_padding_and_skippable_frames_are_passed_over(tmp_path: Path) -> None:
    """Zero bytes after gzip members, and zstd frames that hold no data, change nothing."""
    (line,) = rows(1)
    skippable = struct.pack("<II", 0x184D2A50, 4) + b"note"
    contents = {
        "a.gz": gzip.compress(line) + b"\0" * 5000,
        "a.zst": skippable + zstd.compress(line) + skippable,
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        assert [row.doc_id for row in open_source(tmp_path / name, SPEC).documents({})] == ["d0"]


@pytest.mark.parametrize("ending", PACKERS)
def test_damage_and_truncation_are_named(tmp_path: Path, ending: str) -> None:
    """A packed file that ends early, goes on with something else or was damaged is refused as a
    whole, with its name."""
    whole = PACKERS[ending](b"".join(rows(200, 200)))
    middle = len(whole) // 2
    broken = {
        "truncated": whole[:-10],
        "followed": whole + b"{}\n",
        "damaged": whole[:middle] + bytes(8) + b"\xff" * 40 + whole[middle + 48 :],
        "not": b'{"id": "a"}\n',
    }
    for name, content in broken.items():
        path = tmp_path / f"{name}.jsonl.{ending}"
        path.write_bytes(content)
        with pytest.raises(SourceError, match=f"invalid_(gzip|zstd).*{name}.jsonl") as caught:
            survey(open_source(path, SPEC), SPEC)
        assert ("truncated" in str(caught.value).partition(" is damaged")[2]) == (
            name == "truncated"
        )


@pytest.mark.parametrize("ending", PACKERS)
def test_a_bomb_is_refused_in_flat_memory(tmp_path: Path, ending: str) -> None:
    """A small file that unpacks to hundreds of times its size is refused once it has, and never
    held."""
    path = tmp_path / f"bomb.jsonl.{ending}"
    with gzip.open(path, "wb") if ending == "gz" else zstd.open(path, "wb") as file:
        for _ in range(100):
            file.write(b"x" * MEBIBYTE)
    tracemalloc.start()
    with pytest.raises(SourceError, match=r"decompressed_too_large.*submit it unpacked"):
        survey(open_source(path, SPEC), SPEC)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * MEBIBYTE


def test_a_well_packed_small_file_is_no_bomb(tmp_path: Path) -> None:
    """What repeats itself may unpack to any multiple below 64 MiB."""
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(gzip.compress(b" " * (4 * MEBIBYTE) + b"\n" + rows(1)[0]))
    assert survey(open_source(path, SPEC), SPEC).total == 1


def test_a_file_packed_twice_is_named(tmp_path: Path) -> None:
    """gzip inside of gzip is refused by its first bytes instead of by bad rows."""
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(gzip.compress(rows(1)[0])))
    with pytest.raises(SourceError, match="packed twice"):
        survey(open_source(tmp_path / "in.jsonl.gz", SPEC), SPEC)


@pytest.mark.parametrize("ending", PACKERS)
def test_a_name_without_an_ending_is_looked_into(tmp_path: Path, ending: str) -> None:
    """Where the name says nothing, the first bytes say that a file is packed."""
    (tmp_path / "part-0").write_bytes(PACKERS[ending](b"".join(rows(3))))
    assert survey(open_source(tmp_path / "part-0", SPEC), SPEC).total == 3


def test_a_changed_packed_file_is_never_read(tmp_path: Path) -> None:
    """The pin is that of the packed bytes, and holds them as it does for a plain file."""
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(gzip.compress(rows(1)[0], mtime=1))
    source = open_source(survey(open_source(path, SPEC), SPEC).pin, SPEC)
    path.write_bytes(gzip.compress(rows(1)[0], mtime=2))
    os.utime(path, (1, 1))
    with pytest.raises(SourceChanged):
        list(source.documents({}))
    with pytest.raises(SourceChanged):
        source.fetch("0:10")


def test_an_empty_packed_file_holds_no_document(tmp_path: Path) -> None:
    """No bytes, and a member without any, are an empty source."""
    for number, content in enumerate((b"", gzip.compress(b""))):
        (tmp_path / f"{number}.gz").write_bytes(content)
        with pytest.raises(SourceError, match="empty_source"):
            survey(open_source(tmp_path / f"{number}.gz", SPEC), SPEC)


def test_many_chunks_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where reads of the packed file and pieces of the plain bytes are cut does not matter."""
    plain = b"".join(rows(30, 100))
    for ending, chunk in itertools.product(PACKERS, (1, 3, 1000)):
        path = tmp_path / f"in.{ending}"
        path.write_bytes(PACKERS[ending](plain[:999]) + PACKERS[ending](plain[999:]))
        monkeypatch.setattr("penstock_producer.sources.blobs.local.CHUNK_BYTES", chunk)
        monkeypatch.setattr(unpacked, "CHUNK_BYTES", chunk + 1)
        blob = Unpacked(LocalFile(path), {"gz": "gzip", "zst": "zstd"}[ending])
        assert b"".join(blob.chunks(0)) == plain
        assert b"".join(blob.chunks(1500)) == plain[1500:]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="its standard library has zstd")
def test_a_machine_without_zstd_pauses_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library that is missing is named, as what can be put right."""
    path = tmp_path / "in.jsonl.zst"
    path.write_bytes(zstd.compress(rows(1)[0]))
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    monkeypatch.delattr("backports.zstd")
    with pytest.raises(SourceUnavailable, match=r"pip install penstock\[zstd\]"):
        list(open_source(path, SPEC).documents({}))
