"""Take the pictures in docs/images: `python -m tools.pictures.dashboard`.

Needs Chromium, and redis-server as the tests do."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "docs/images"
LARGEST: Final = 150_000  # bytes of a picture


class Picture(NamedTuple):
    name: str
    place: str  # with {running} for the id of the job that runs
    scheme: str = "light"
    width: int = 1120
    height: int = 860


PICTURES: Final = (
    Picture("dashboard-job", "/ui/jobs/{running}"),
    Picture("dashboard-jobs-dark", "/ui/jobs", scheme="dark", height=620),
    Picture("dashboard-letters", "/ui/jobs/{running}/letters", height=620),
    Picture("dashboard-phone", "/ui/jobs/{running}", width=375, height=812),
)


def main() -> None:
    sys.path.insert(0, str(ROOT / "tests/harness"))
    from dashboard_ledger import chromium, seed
    from doors import door, door_settings
    from servers import RedisServer

    from penstock_ledger import open_database

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "redis").mkdir()
        redis = RedisServer.start(folder / "redis")
        try:
            settings = door_settings(folder, redis.url)
            database = open_database(settings.database_url)
            database.migrate()
            with door(settings) as url, chromium() as browser:
                ids = seed(database, folder, redis.client(), small=False)
                for picture in PICTURES:
                    page = browser.new_page(
                        color_scheme="dark" if picture.scheme == "dark" else "light",
                        viewport={"width": picture.width, "height": picture.height},
                    )
                    page.goto(url + picture.place.format(running=ids.running))
                    path = FOLDER / f"{picture.name}.png"
                    page.screenshot(path=str(path))
                    page.close()
                    size = path.stat().st_size
                    print(f"{path.relative_to(ROOT)}: {size:,} bytes")  # noqa: T201  # what the program is for
                    assert size < LARGEST, f"{path} has more than {LARGEST:,} bytes"
            database.close()
        finally:
            redis.stop()


if __name__ == "__main__":
    main()
