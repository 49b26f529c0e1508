"""While a job runs, `penstock run` and `status --watch` show a panel, or lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from penstock_cli.show.figures import JobFigures
from penstock_producer.reporting.engines import engines_line
from penstock_producer.reporting.money import money_of
from penstock_producer.reporting.reasons import retried_line, reused_lines
from penstock_producer.reporting.text import asked_again, count, duration, percent, rate, safe

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

LINE_EVERY_S = 5.0
CAUSE_EVERY_S = 60.0
NOTE_EVERY_S = 30.0  # the same note again, with how it goes, where lines stay
PANEL_PER_S = 4.0
PANEL_WIDTH = 78
RESUMES = "Ctrl-C stops; the same command resumes"  # below the panel of `penstock run`
HURRIES = "Ctrl-C again ends at once"  # likewise, while it stops


class Wait(NamedTuple):
    """A wait: a sentence that stays, and what changes meanwhile."""

    why: str
    more: str = ""


class Progress(Protocol):
    """Shows figures as they change; a context manager, so that the terminal is left as it was."""

    def show(self, figures: JobFigures) -> None: ...

    def note(self, text: str | None, more: str = "") -> None:
        """Show what is waited for, until the next note; ``more`` changes while it goes on."""
        ...

    def hint(self, text: str) -> None:
        """Show what Ctrl-C does from now on, where something is drawn anew."""
        ...

    def say(self, message: str) -> None:
        """Print a line that stays on the screen."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def for_console(console: Console, title: str, *, panel: bool, hint: str = RESUMES) -> Progress:
    """Return what shows progress; ``hint`` says below the panel what Ctrl-C does."""
    return Panel(console, title, hint) if panel and console.is_terminal else Lines(console)


class Lines:
    """One line every few seconds, for logs and pipes."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._next = 0.0
        self._reasons: tuple[str, ...] = ()  # said already
        self._next_cause = 0.0
        self._noted: str | None = None
        self._next_note = 0.0

    def show(self, figures: JobFigures) -> None:
        if self._clock() < self._next:
            return
        self._next = self._clock() + LINE_EVERY_S
        self._console.print(line(figures), soft_wrap=True)
        self._say_reasons(figures)
        if figures.engines is not None:
            self._console.print(engines_line(figures.engines), soft_wrap=True)

    def _say_reasons(self, figures: JobFigures) -> None:
        """Print what changed since the last line.

        Why calls fail comes now and then, since its count always changes."""
        if figures.reasons != self._reasons:
            self._reasons = figures.reasons
            for reason in figures.reasons:
                self.say(reason)
        if figures.cause is not None and self._clock() >= self._next_cause:
            self._next_cause = self._clock() + CAUSE_EVERY_S
            self.say(f"the last failure: {figures.cause}")

    def note(self, text: str | None, more: str = "") -> None:
        if text == self._noted and (not more or self._clock() < self._next_note):
            return
        self._noted, self._next_note = text, self._clock() + NOTE_EVERY_S
        if text:
            self.say(_noted(text, more))

    def hint(self, text: str) -> None:
        pass

    def say(self, message: str) -> None:
        self._console.print(safe(message), soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Panel:
    """A compact panel that a thread of its own redraws in place while the program is busy."""

    def __init__(self, console: Console, title: str, hint: str = RESUMES) -> None:
        from rich.live import Live

        self._title = title
        self._hint = hint
        self._console = console
        self._began = time.monotonic()
        # written by the caller, read by the drawing thread, like the note
        self._figures: JobFigures | None = None
        self._note = ""
        self._live = Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=PANEL_PER_S,
            transient=True,
        )

    def show(self, figures: JobFigures) -> None:
        self._figures = figures

    def note(self, text: str | None, more: str = "") -> None:
        self._note = safe(_noted(text, more)) if text else ""

    def hint(self, text: str) -> None:
        self._hint = text

    def say(self, message: str) -> None:
        self._console.print(safe(message))

    def _render(self) -> RenderableType:
        return panel(
            self._figures,
            self._title,
            note=self._note,
            hint=self._hint,
            seconds=time.monotonic() - self._began,
        )

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


def _noted(text: str, more: str) -> str:
    return f"{text} {more}" if more else text


def line(figures: JobFigures) -> str:
    """Return ``12.3 %  1,234 of 10,000 · 204/s · 43 s left · claimed 256 · …``."""
    return " · ".join(
        [_share(figures), _speed(figures), *_traffic(figures), *_trouble(figures), *_spent(figures)]
    )


def final_line(figures: JobFigures) -> str:
    """Return ``line`` for a job that is over: nothing moves any more."""
    return " · ".join([_share(figures), *_trouble(figures), *_spent(figures)])


def panel(
    figures: JobFigures | None,
    title: str,
    *,
    note: str = "",
    hint: str = RESUMES,
    seconds: float = 0.0,
) -> RenderableType:
    """Draw the panel; ``figures`` are None until there are any.

    ``seconds`` count since the panel appeared.
    """
    from rich.panel import Panel as Box
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    body = Table.grid(expand=True)
    body.add_row(
        ProgressBar(
            total=max(1, (figures.total if figures else None) or 1),
            completed=figures.finished if figures else 0,
            pulse=figures is None or figures.total is None,
            complete_style="cyan",
            finished_style="green",
        )
    )
    for text in _figure_lines(figures) if figures else ():
        body.add_row(Text(text, no_wrap=True, overflow="ellipsis"))
    for reason in reason_lines(figures) if figures else ():
        body.add_row(Text(reason, style="yellow"))
    if figures is not None and figures.engines is not None:
        # wrapped: what bounds the fleet stands at its end
        body.add_row(Text(engines_line(figures.engines)))
    if note:
        body.add_row(Text(note, style="yellow" if figures else ""))
    if figures is None:
        body.add_row(Text(f"{duration(seconds)} since the start", style="dim"))
    return Box(
        body,
        title=Text(safe(title), style="bold"),
        title_align="left",
        subtitle=Text(hint, style="dim"),
        subtitle_align="right",
        width=PANEL_WIDTH,
        padding=(0, 1),
    )


def _figure_lines(figures: JobFigures) -> list[str]:
    return [
        f"{_share(figures)}  ·  {_speed(figures)}  ·  {duration(figures.seconds)} elapsed",
        "  ·  ".join(_traffic(figures)),
        "  ·  ".join(_trouble(figures)),
        "  ·  ".join(_spent(figures)),
    ]


def reason_lines(figures: JobFigures) -> list[str]:
    """Return what keeps the job from going faster, and why calls failed lately."""
    last = f"the last failure: {figures.cause}" if figures.cause else None
    return [
        *figures.reasons,
        *(line for line in (retried_line(figures.retried_by_reason), last) if line is not None),
    ]


def _share(figures: JobFigures) -> str:
    if figures.total is None:
        return f"{count(figures.finished)} finished, still open"
    return (
        f"{percent(figures.finished, figures.total)}  {count(figures.finished)} of "
        f"{count(figures.total)}"
    )


def _speed(figures: JobFigures) -> str:
    left = figures.seconds_left
    return (
        rate(figures.per_second)
        if left is None
        else f"{rate(figures.per_second)}, {duration(left)} left"
    )


def _traffic(figures: JobFigures) -> list[str]:
    if figures.batches is not None:
        return [figures.batches]
    return [
        f"claimed {count(figures.claimed)}",
        f"queued {count(figures.queued)}",
        f"delayed {count(figures.delayed)}",
        f"workers {figures.workers}",
    ]


def _trouble(figures: JobFigures) -> list[str]:
    return [
        f"retries {count(figures.retries)}",
        f"rate limited {count(figures.rate_limited)}",
        f"dead letters {count(figures.dead)}{asked_again(figures.repairs, figures.fallbacks)}",
    ]


def _spent(figures: JobFigures) -> list[str]:
    return [
        f"tokens {count(figures.prompt_tokens)} in, {count(figures.completion_tokens)} out",
        f"cost {_cost(figures)}",
        *reused_lines(figures.deduplicated, figures.cached),
    ]


def _cost(figures: JobFigures) -> str:
    """Return the cost; before the first answer it is not known whether that has a price."""
    is_any = (
        figures.cost_microusd
        or figures.prompt_tokens
        or figures.completion_tokens
        or figures.unpriced
    )
    return money_of(figures).words if is_any else "none yet"
