"""A real Chromium that tests drive, as the machine has it: no browser is downloaded."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

from playwright.sync_api import Browser, sync_playwright
from servers import MissingServer

ARGUMENTS = ("--no-sandbox", "--headless=new", "--disable-gpu", "--disable-dev-shm-usage")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Raises MissingServer where there is none."""
    path = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if path is None:
        raise MissingServer("there is no Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()
