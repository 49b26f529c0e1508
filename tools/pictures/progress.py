"""Take the pictures of a run in docs/images: `python -m tools.pictures.progress`.

It runs the demo in a terminal of its own."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "docs/images"
DOCS: Final = 1_200  # of the demo: some fifteen seconds of progress
COLUMNS, LINES = 80, 40
HALF_WAY: Final = (50.0, 75.0)  # per cent that are finished on the picture
LARGEST: Final = 40_000  # bytes of a picture

PANEL: Final = re.compile(r"╭─.*?╯", re.DOTALL)
SHARE: Final = re.compile(r"(\d+(?:\.\d+)?) %")
# of the cursor; colours end in m and stay
MOVES: Final = re.compile(r"\x1b\[[\d;?]*[A-HJKSTfhlsu]")
# rich names them; the reader's own font does as well
WEB_FONTS: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        demo = [
            sys.executable,
            str(ROOT / "examples/demo.py"),
            "--out",
            "demo",
            "--docs",
            str(DOCS),
        ]
        shown = in_terminal(demo, folder)
    shown = MOVES.sub("", shown.replace("\r\n", "\n").replace("\r", ""))
    panels = [found[0] for found in PANEL.finditer(shown)]
    half = [panel for panel in panels if HALF_WAY[0] <= share_of(panel) <= HALF_WAY[1]]
    assert half, f"none of {len(panels)} panels shows {HALF_WAY[0]:g} to {HALF_WAY[1]:g} %"
    write("run-progress", f"$ make demo\n{half[len(half) // 2]}")
    end = shown[shown.rindex(panels[-1]) + len(panels[-1]) :]
    write("run-end", "\n".join(account_of(end)))


def in_terminal(command: list[str], folder: str) -> str:
    """All that the command writes to a terminal of its own, run in ``folder``."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = os.environ | {
        "TERM": "xterm-256color",
        "COLUMNS": str(COLUMNS),
        "LINES": str(LINES),
    }
    process = subprocess.Popen(  # noqa: S603 -- our own demo
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    written = b"".join(pieces(ours))
    assert process.wait() == 0, written.decode(errors="replace")
    return written.decode()


def pieces(terminal: int) -> Iterator[bytes]:
    try:
        while piece := os.read(terminal, 65_536):
            yield piece
    except OSError:  # how a terminal says that its last writer is gone
        pass
    finally:
        os.close(terminal)


def share_of(panel: str) -> float:
    found = SHARE.search(Text.from_ansi(panel).plain)
    return float(found[1]) if found else 0.0


def account_of(end: str) -> Iterator[str]:
    """From the first line of figures on to the empty line before the hints."""
    lines = iter(end.splitlines())
    yield next(line for line in lines if "succeeded" in line)
    for line in lines:
        if not line.strip():
            return
        yield line


def write(name: str, text: str) -> None:
    console = Console(
        record=True,
        width=COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    console.print(Text.from_ansi(text.rstrip()), soft_wrap=True)
    path = FOLDER / f"{name}.svg"
    path.write_text(WEB_FONTS.sub("", console.export_svg(title="penstock", unique_id=name)))
    size = path.stat().st_size
    print(f"{path.relative_to(ROOT)}: {size:,} bytes")  # noqa: T201  # what the program is for
    assert size < LARGEST, f"{path} has more than {LARGEST:,} bytes"


if __name__ == "__main__":
    main()
