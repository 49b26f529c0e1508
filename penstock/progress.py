"""The progress of a run is a bar in a notebook and a terminal, lines in a log; in tqdm's words."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import RenderableType

LINE_EVERY_S: Final = 10.0  # in a log
DRAW_EVERY_S: Final = 0.25
LATEST_EVERY_S: Final = 1.0
LATEST: Final = 3  # answers that are shown as they come
LATEST_CHARS: Final = 100  # of each
BAR_CHARS: Final = 20
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"
_KERNELS: Final = ("ZMQInteractiveShell", "Shell")  # of Jupyter and what is like it, of Colab


class View(NamedTuple):
    """A view of a run at one moment."""

    title: str
    figures: Mapping[str, Any]  # of the run; empty before there are any
    note: str | None  # what is waited for
    latest: Sequence[str] = ()  # answers, the newest first
    said: Sequence[str] = ()  # lines that stay, all so far


class Bar(Protocol):
    """Shows views as they come."""

    def show(self, view: View) -> None: ...

    def close(self) -> None:
        """Show the last view, whole."""
        ...


def bar(wanted: bool) -> Bar:
    """Return what shows progress here."""
    if not wanted:
        return Silent()
    if _in_notebook():
        return Notebook()
    return Terminal() if sys.stderr.isatty() else Log(sys.stderr)


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ in _KERNELS


def line(view: View, *, with_bar: bool = True) -> str:
    """Return `tickets:  45%|█████████           | 450/1000 [00:12<00:15, 36.2 rows/s, $0.0123]`."""
    figures = view.figures
    if not figures:
        return f"{view.title}: {view.note or 'starting'}"
    done, total = figures["succeeded"] + figures["dead"], figures["total"]
    share = 0.0 if not total else min(1.0, done / total)
    left = 0.0 if done == total else figures["seconds_left"]
    rate = figures["per_second"]
    parts = [
        f"{_clock(figures['seconds'])}<{'?' if left is None else _clock(left)}",
        f"{rate:.1f} rows/s" if rate else "? rows/s",
        cost(figures),
        *([f"{figures['dead']:,} failed"] if figures["dead"] else []),
        *([f"{figures['retries']:,} retries"] if figures["retries"] else []),
    ]
    whole, part = divmod(round(share * BAR_CHARS * 8), 8)
    drawn = ("█" * whole + (_EIGHTHS[part] if part else "")).ljust(BAR_CHARS)
    of = "?" if total is None else f"{total}"
    bar_drawn = f"|{drawn}|" if with_bar else ""
    return f"{view.title}: {share:4.0%}{bar_drawn} {done}/{of} [{', '.join(parts)}]"


def cost(figures: Mapping[str, Any]) -> str:
    """Return what was spent so far, with a sign where it is more: an unknown price is no zero."""
    known = f"${figures['cost_microusd'] / 1_000_000:.4f}"
    if not figures["unpriced"]:
        return known
    return f"more than {known}" if figures["cost_microusd"] else "cost unknown"


def notes(view: View) -> list[str]:
    """Return what is waited for, and what keeps the job from going faster."""
    figures = view.figures
    cause = figures.get("cause")
    found = [view.note] if view.note and figures else []
    return [*found, *figures.get("reasons", ()), *([f"the last failure: {cause}"] if cause else [])]


def _clock(seconds: float) -> str:
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes:02}:{left:02}"


class Silent:
    def show(self, view: View) -> None:
        pass

    def close(self) -> None:
        pass


class Log:
    """A line now and then, for what is no terminal."""

    def __init__(self, file: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._next = clock() + LINE_EVERY_S
        self._view: View | None = None
        self._written = ""
        self._said = 0

    def show(self, view: View) -> None:
        self._view = view
        for text in view.said[self._said :]:
            self._write(text)
        self._said = len(view.said)
        if self._clock() >= self._next:
            self._next = self._clock() + LINE_EVERY_S
            for text in (line(view), *notes(view)):
                self._write(text)

    def close(self) -> None:
        if self._view is not None and self._view.figures:
            self._write(line(self._view))

    def _write(self, text: str) -> None:
        if text != self._written:
            self._file.write(f"{text}\n")
            self._file.flush()
        self._written = text


class Terminal:
    """A bar that is drawn in place, with the latest answers below it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True, highlight=False, markup=False)
        self._view: View | None = None
        self._said = 0
        self._live = Live(
            console=self._console, get_renderable=self._drawn, refresh_per_second=1 / DRAW_EVERY_S
        )
        self._live.start()

    def show(self, view: View) -> None:
        self._view = view
        for text in view.said[self._said :]:
            self._console.print(text, soft_wrap=True)
        self._said = len(view.said)

    def close(self) -> None:
        if self._view is not None:
            self._view = self._view._replace(latest=(), note=None)
        self._live.stop()

    def _drawn(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        if self._view is None:
            return Text("")
        shown = [Text(line(self._view), no_wrap=True, overflow="ellipsis")]
        shown += [Text(note, style="yellow") for note in notes(self._view)]
        shown += [
            Text(f"  {text}", style="dim", no_wrap=True, overflow="ellipsis")
            for text in self._view.latest
        ]
        return Group(*shown)


class Notebook:
    """A bar in the output of a cell, drawn anew in its place."""

    def __init__(self) -> None:
        shown = import_module("IPython.display")  # which is there, as this is its notebook
        self._html = shown.HTML
        self._next = 0.0
        self._view: View | None = None
        self._handle = shown.display(shown.HTML(""), display_id=True)

    def show(self, view: View) -> None:
        self._view = view
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + DRAW_EVERY_S
            self._draw(view)

    def close(self) -> None:
        if self._view is not None:
            self._draw(self._view._replace(latest=(), note=None))

    def _draw(self, view: View) -> None:
        figures = view.figures
        total = (figures.get("total") or 0) if figures else 0
        done = figures["succeeded"] + figures["dead"] if figures else 0
        head = f'<progress value="{done}" max="{total or 1}" style="width:40%"></progress>'
        text = html.escape(line(view, with_bar=False))
        below = [*view.said, *notes(view), *view.latest]
        rest = "".join(f"<div><small>{html.escape(one)}</small></div>" for one in below)
        self._handle.update(self._html(f"{head}<pre style='margin:0'>{text}</pre>{rest}"))
