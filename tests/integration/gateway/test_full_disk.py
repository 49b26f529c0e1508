"""A disk without a byte left: everything can still be read, and nothing that is refused is a fault
of the server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doors import asked, door, door_settings, new_key
from servers import RedisServer
from small_disk import fill, small_disk

DISK_MB = 200  # above what is kept free of uploads
FORM = "multipart/form-data; boundary=xx"
LINE = (
    b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": '
    b'"m", "messages": []}}\r\n'
)
PART = b'--xx\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
UPLOAD = (
    PART % (b"purpose", b"", b"batch")
    + PART % (b"file", b'; filename="a.jsonl"', LINE)
    + b"--xx--\r\n"
)
PAGES = (
    "/ui/jobs",
    "/ui/jobs/{job}",
    "/ui/spending",
    "/ui/workers",
    "/ui/quotas",
    "/ui/login",
    "/metrics",
    "/livez",
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK_MB) as place:
        yield place


def test_everything_is_read_on_a_full_disk(place: Path, redis_server: RedisServer) -> None:
    """Every GET of the document and every page answers, although counts, the last use of a key and
    the secret of forms would like to be written; what changes something is refused with 503 or 507
    and tells when to come again."""
    settings = door_settings(place, redis_server.url)
    key = {"authorization": f"Bearer {new_key(settings, None, 'admin')}"}
    with door(settings) as url:

        def sent(path: str, body: Any) -> Any:
            return asked(
                f"{url}{path}", json.dumps(body).encode(), content_type="application/json", **key
            ).content

        file = asked(f"{url}/v1/files", UPLOAD, content_type=FORM, **key).content["id"]
        job = sent("/v1/jobs", {"open": True, "model": "m", "prompt": "{text}"})["id"]
        batch = {
            "input_file_id": file,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        ids = {"job": job, "file_id": file, "batch_id": sent("/v1/batches", batch)["id"]}
        document = asked(f"{url}/openapi.json").content["paths"]
        reads = [
            path
            for path, methods in document.items()
            if "get" in methods and not path.endswith("/events")
        ]
        assert len(reads) > 20
        filler = fill(place)
        for path in (*reads, *PAGES):
            named = re.sub(r"\{(\w+)\}", lambda found: ids.get(found[1], "unknown"), path)
            answer = asked(f"{url}{named}", **key)
            assert answer.status < 500, (named, answer.body)
        for method, path in (
            ("POST", f"/v1/jobs/{job}/pause"),
            ("DELETE", f"/v1/jobs/{job}"),
            ("POST", "/v1/jobs"),
        ):
            answer = asked(
                f"{url}{path}", b"{}", method=method, content_type="application/json", **key
            )
            assert answer.status in (409, 503, 507), (path, answer.body)
            assert answer.status == 409 or "retry-after" in answer.headers
        filler.unlink()
        assert asked(f"{url}/v1/batches/{ids['batch_id']}", **key).status == 200
