"""What a stranger may read: the setting `source_roots`, against names, links and what is exchanged
behind our back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock_gateway.settings import GatewayFields, GatewaySettings
from penstock_producer import JobSpec, Producer, SourceError
from penstock_producer.accepting.remote_limits import DoorSettings, RemoteLimits
from penstock_producer.errors import SettingsError, SourceForbidden
from penstock_producer.settings import ProducerSettings
from penstock_producer.source_roots import SourceRoots
from penstock_producer.sources import open_source

ROW = '{"id": "a", "text": "the text of a row"}\n'
SPEC = JobSpec(prompt="{text}", model="m")


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    folder = tmp_path / "inside"
    folder.mkdir()
    (folder / "rows.jsonl").write_text(ROW)
    (tmp_path / "secret.jsonl").write_text(ROW)
    return folder


def settings_of(folder: Path, *more: str) -> ProducerSettings:
    url = f"sqlite:///{folder.parent}/ledger.db"
    return ProducerSettings(database_url=url, source_roots=(str(folder), *more))


def remote(folder: Path, *more: str) -> Producer:
    return Producer(settings_of(folder, *more), remote_limits=RemoteLimits())


def test_by_default_a_remote_door_reads_nothing(inside: Path) -> None:
    """Without `source_roots` a remote submitter reads no file, and the refusal names the setting
    (B2)."""
    settings = ProducerSettings(database_url=f"sqlite:///{inside.parent}/ledger.db")
    with (
        Producer(settings, remote_limits=RemoteLimits()) as door,
        pytest.raises(SourceForbidden, match=r"source_roots.*nothing"),
    ):
        door.submit(str(inside / "rows.jsonl"), SPEC)


def test_inside_is_read_outside_is_refused_alike(inside: Path) -> None:
    """A remote job reads inside a root; outside, what exists and what does not are refused in the
    same words (B2)."""
    with remote(inside) as door:
        assert door.submit(str(inside / "rows.jsonl"), SPEC).total == 1
        with pytest.raises(SourceForbidden) as refused:
            door.submit("/etc/passwd", SPEC)
        assert str(inside) in str(refused.value), "the operator reads what is allowed"
        assert str(inside) not in refused.value.public_message, "and no other caller does"
        words = []
        secret = inside.parent / "secret.jsonl"
        for _ in ("it exists", "it does not"):
            with pytest.raises(SourceForbidden) as refused:
                door.submit(str(secret), SPEC)
            words.append(str(refused.value))
            secret.unlink(missing_ok=True)
    assert words[0] == words[1]


@pytest.mark.parametrize(
    "name",
    [
        "../secret.jsonl",
        "./rows.jsonl",
        "/rows.jsonl",
        "sub//rows.jsonl",
        "rows.jsonl\n",
        "rows\x00.jsonl",
        "\ud800.jsonl",
        "",
    ],
)
def test_odd_names_are_refused_before_anything_is_opened(
    inside: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Dots, doubled slashes, NULs and half characters in a path are refused by its name alone
    (B2)."""
    monkeypatch.setattr(os, "open", None)
    with pytest.raises(SourceForbidden):
        SourceRoots([str(inside)]).open(f"{inside}/{name}")


@pytest.mark.parametrize(
    "where",
    [
        "/etc/passwd",
        "/proc/self/environ",
        "file:///etc/passwd",
        "etc/passwd",
        "https://host/x",
        "/dev/zero",
    ],
)
def test_other_places_are_refused(inside: Path, where: str) -> None:
    """System files, other schemes and relative paths are no sources at a remote door (B2)."""
    with remote(inside) as door, pytest.raises(SourceForbidden):
        door.submit(where, SPEC)


def test_links_lead_nowhere_else(inside: Path) -> None:
    """A link that stays inside is followed; one that leads out is refused, to a file and to a
    folder (B2)."""
    (inside / "good.jsonl").symlink_to(inside / "rows.jsonl")
    (inside / "bad.jsonl").symlink_to(inside.parent / "secret.jsonl")
    (inside / "folder").symlink_to(inside.parent)
    with remote(inside) as door:
        assert door.submit(str(inside / "good.jsonl"), SPEC).total == 1
        for name in ("bad.jsonl", "folder/secret.jsonl", "folder/absent.jsonl"):
            with pytest.raises(SourceForbidden):
                door.submit(str(inside / name), SPEC)


@pytest.mark.parametrize("part", ["rows.jsonl", "sub"])
def test_what_is_exchanged_after_the_check_is_not_followed(
    inside: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """A file or folder that becomes a link between the check and the opening is refused, not read
    (B2)."""
    (inside / "sub").mkdir()
    (inside / "sub" / "rows.jsonl").write_text(ROW)
    (inside.parent / "rows.jsonl").write_text("secret")
    path = inside / "sub" / "rows.jsonl"
    resolve = os.path.realpath

    def resolve_then_exchange(name: str) -> str:
        found = resolve(name)
        if name == str(path):
            at = path if part == "rows.jsonl" else path.parent
            at.rename(inside / "moved")
            at.symlink_to(inside.parent / part if part == "rows.jsonl" else inside.parent)
        return found

    monkeypatch.setattr(os.path, "realpath", resolve_then_exchange)
    with pytest.raises(SourceForbidden):
        SourceRoots([str(inside)]).open(str(path))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_only_regular_files_are_read(inside: Path, make: Callable[[str], None]) -> None:
    """A pipe or folder inside a root is refused at once, and hangs nothing (B2)."""
    make(str(inside / "odd"))
    with remote(inside) as door, pytest.raises(SourceError, match="not_a_regular_file"):
        door.submit(str(inside / "odd"), SPEC)


def test_a_remote_job_stays_confined_after_its_submit(inside: Path) -> None:
    """A source that is exchanged for a link after the submit is not read by the feed or by workers,
    whatever its size and time say (B2)."""
    path = inside / "rows.jsonl"
    with remote(inside) as door:
        pin = dict(door.submit(str(path), SPEC).source)
    secret = inside.parent / "secret.jsonl"
    os.utime(secret, ns=(pin["mtime_ns"], pin["mtime_ns"]))
    path.unlink()
    path.symlink_to(secret)
    source = open_source(pin, SPEC, settings_of(inside))
    with pytest.raises(SourceForbidden):
        list(source.documents({}))
    with pytest.raises(SourceForbidden):
        source.fetch("0:10")


def test_trusted_doors_are_not_confined(inside: Path) -> None:
    """The command line and `Producer` with the database's own credentials read what their user can
    read."""
    with Producer(settings_of(inside)) as producer:
        job = producer.submit(inside.parent / "secret.jsonl", SPEC)
    assert len(list(open_source(job.source, SPEC, settings_of(inside)).documents({}))) == 1


@pytest.mark.parametrize(
    ("where", "inside_a_root"),
    [
        ("s3://corpora/team/a.jsonl", True),
        ("s3://corpora/team-secret/a.jsonl", False),
        ("s3://corpora/team", False),
        ("s3://corpora/a.jsonl", False),
        ("s3://corpora/team/../a.jsonl", False),
        ("s3://corpora/team/%2e%2e/a", False),
        ("s3://corpora/team//a", False),
        ("s3://other/team/a.jsonl", False),
        ("s3://corpora@other/team/a", False),
        ("s3://corpora/team/a?x=1", False),
        ("s3://whole/any/thing", True),
        ("s3://[corpora/team/a", False),
    ],
)
def test_objects_are_confined_by_bucket_and_prefix(where: str, inside_a_root: bool) -> None:
    """A prefix is a folder of its bucket, not the beginning of names, and no spelling leads out of
    it (B2)."""
    roots = SourceRoots(["s3://corpora/team", "s3://whole"])
    if inside_a_root:
        roots.admit(where)
    else:
        with pytest.raises(SourceForbidden, match="source_roots"):
            roots.admit(where)


@pytest.mark.parametrize(
    "root", ["/", "data", "/proc", "/dev/shm", "/a/../b", "https://x", "s3://", "s3://b/../c", ""]
)
def test_roots_that_are_no_folders_of_data_are_refused(
    monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    """A root that would open the whole machine, or nothing certain, is an error of the settings
    that names it (B2)."""
    monkeypatch.delenv("PENSTOCK_CONFIG", raising=False)
    with pytest.raises(SettingsError, match="source_roots"):
        ProducerSettings.load(source_roots=(root,))


def test_a_refused_source_tells_a_stranger_nothing_of_its_rows(inside: Path) -> None:
    """What a remote submitter hears of bad rows is line, kind and field, never what stands there
    (B2)."""
    (inside / "keys.jsonl").write_text('{"aws_secret": "hunter2"}\nroot:x:0:0\n' + ROW)
    with remote(inside) as door, pytest.raises(SourceError) as refused:
        door.submit(str(inside / "keys.jsonl"), SPEC)
    assert "hunter2" not in refused.value.public_message
    assert "aws_secret" not in refused.value.public_message
    assert "root:x" not in refused.value.public_message
    assert "missing_required_parameter (id) in line 1" in refused.value.public_message
    assert "invalid_json_line in line 2" in refused.value.public_message


def test_a_row_of_another_form_is_not_quoted_to_a_stranger(inside: Path) -> None:
    """Names of columns are content, too: the advice for a wrong form keeps them from a remote
    submitter (B2)."""
    with (
        remote(inside) as door,
        pytest.raises(SourceError, match="columns 'id', 'text'") as refused,
    ):
        door.submit(str(inside / "rows.jsonl"), JobSpec())
    assert "'text'" not in refused.value.public_message
    assert "wrong_form" in refused.value.public_message


@pytest.mark.parametrize(
    ("name", "fields"),
    [("rows.parquet", {}), ("rows", {}), ("rows.csv", {"format": "arrow"}), ("rows.feather", {})],
)
def test_native_parsers_see_no_file_of_a_stranger(
    inside: Path, name: str, fields: dict[str, str]
) -> None:
    """Parquet and Arrow are refused before anything is parsed, however they are named, until the
    operator allows them."""
    (inside / name).write_bytes(b"PAR1 made for a fault of the parser")
    asking = SPEC.model_copy(update=fields)
    with (
        remote(inside) as door,
        pytest.raises(SourceError, match=r"format_not_allowed: .*doors\.formats allows jsonl"),
    ):
        door.submit(str(inside / name), asking)
    allowing = RemoteLimits(DoorSettings(formats=("parquet", "arrow")))
    with (
        Producer(settings_of(inside), remote_limits=allowing) as door,
        pytest.raises(SourceError, match="invalid_"),
    ):
        door.submit(str(inside / name), asking)
    with Producer(settings_of(inside)) as trusted, pytest.raises(SourceError, match="invalid_"):
        trusted.submit(str(inside / name), asking)


@pytest.fixture
def doors(tmp_path: Path) -> Path:
    """A folder with the uploads of all tenants in it, and sources beside them."""
    for name in ("in", "uploads"):
        (tmp_path / "all" / name).mkdir(parents=True)
        (tmp_path / "all" / name / "rows.jsonl").write_text(ROW)
    return tmp_path / "all"


def with_files(root: str, files: str, **more: Any) -> GatewaySettings:
    return GatewaySettings(
        database_url="postgresql://db/x",
        source_roots=(root,),
        gateway=GatewayFields(files=files),
        **more,
    )


@pytest.mark.parametrize(
    "files",
    [
        "{all}",
        "{all}/uploads",
        "{all}/uploads/deeper",
        "{all}/../all/uploads",
        "{link}/uploads",
        "{link}/new",
        "{all}/..",
    ],
)
def test_no_root_holds_the_uploads_of_other_tenants(doors: Path, files: str) -> None:
    """Where one of both holds the other, by its name, by `..` or through a link, no door opens
    (S6)."""
    (doors.parent / "link").symlink_to(doors)
    place = files.format(all=doors, link=doors.parent / "link")
    with pytest.raises(SettingsError, match=r"source_roots = .*gateway\.files .*one tenant"):
        with_files(str(doors), place).refuse_shared_roots()


@pytest.mark.parametrize(
    ("root", "files"),
    [
        ("s3://b/in", "s3://b/in/files"),
        ("s3://b/in", "s3://b/in"),
        ("s3://b", "s3://b/files/"),
        ("s3://b/in/a", "s3://b/in"),
        ("s3://b/i%6E", "s3://b/in/files"),
        ("gs://b", "gs://b"),
    ],
)
def test_no_prefix_holds_the_uploads_of_other_tenants(root: str, files: str) -> None:
    """Prefixes of buckets that hold each other are refused likewise, in either direction and
    however they are written (S6)."""
    with pytest.raises(SettingsError, match=r"gateway\.files"):
        with_files(root, files).refuse_shared_roots()


@pytest.mark.parametrize(
    ("root", "files"),
    [
        ("s3://b/in", "s3://b/inner"),
        ("s3://b/in", "s3://c/in"),
        ("s3://b/in", "gs://b/in"),
        ("/data/in", "/data/inner"),
        ("/data", "s3://data"),
        ("/data/in", "/data/files"),
    ],
)
def test_places_side_by_side_are_fine(root: str, files: str) -> None:
    """Names that only begin alike, other buckets and other services are other places (S6)."""
    with_files(root, files).refuse_shared_roots()


def test_no_root_holds_results_ledger_or_state(doors: Path) -> None:
    """Results, a SQLite ledger and the folder of `penstock serve` belong to all tenants, and are
    refused likewise (S6)."""
    root = str(doors)
    url = f"sqlite:///{doors}/ledger.db"
    with pytest.raises(SettingsError, match="results_url"):
        ProducerSettings(
            database_url="postgresql://db/x", source_roots=(root,), results_url=f"{root}/out"
        ).refuse_shared_roots()
    with pytest.raises(SettingsError, match="database_url"):
        ProducerSettings(database_url=url, source_roots=(root,)).refuse_shared_roots()
    with pytest.raises(SettingsError, match="the state folder"):
        with_files(root, "/elsewhere").refuse_shared_roots(doors / "state")


def test_workers_know_the_doors_folder_where_their_settings_name_it(
    doors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process with a Celery door refuses the same settings; where none names a folder, none is
    guessed (S6)."""
    monkeypatch.chdir(doors)
    ProducerSettings(
        database_url="postgresql://db/x", source_roots=(str(doors),)
    ).refuse_shared_roots()
    monkeypatch.setenv("PENSTOCK_GATEWAY__FILES", "uploads")
    monkeypatch.setenv("PENSTOCK_GATEWAY__PORT", "8600")
    with pytest.raises(SettingsError, match=r"gateway\.files"):
        ProducerSettings.load(
            database_url="postgresql://db/x", source_roots=(str(doors),)
        ).refuse_shared_roots()


def test_an_upload_is_not_read_by_its_path(doors: Path) -> None:
    """A process that is up already refuses it by its name and by its inode (S6)."""
    settings = with_files(str(doors / "in"), str(doors / "uploads"))
    os.rename(doors / "uploads", doors / "in" / "uploads")  # as a mount that appears there
    (doors / "uploads").symlink_to(doors / "in" / "uploads")
    with pytest.raises(SourceForbidden):
        os.close(settings.readable.open(str(doors / "in" / "uploads" / "rows.jsonl")))
    os.close(settings.readable.open(str(doors / "in" / "rows.jsonl")))
    inside = SourceRoots(["s3://b"], ["s3://b/files"])
    for uri in ("s3://b/files/file-1.jsonl", "s3://b/fi%6Ces/file-1.jsonl"):
        with pytest.raises(SourceForbidden):
            inside.admit(uri)
    inside.admit("s3://b/other/rows.jsonl")


def test_a_link_to_the_ledger_is_not_the_ledger(doors: Path) -> None:
    """A hard link to the SQLite file or to its log inside a root is refused by its inode (S6)."""
    settings = ProducerSettings(
        database_url=f"sqlite:///{doors}/ledger.db", source_roots=(str(doors / "in"),)
    )
    for name in ("ledger.db", "ledger.db-wal"):
        (doors / name).write_text(ROW)
        os.link(doors / name, doors / "in" / f"{name}.jsonl")
        with pytest.raises(SourceForbidden):
            os.close(settings.readable.open(str(doors / "in" / f"{name}.jsonl")))
