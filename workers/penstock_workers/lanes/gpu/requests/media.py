"""Images and sounds of a document: read here, within limits, before vLLM has them.

An address that it names is never fetched.

A bound on what decoded images hold of a worker's memory, from their decoding until the engine
has answered.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import weakref
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from penstock_producer.errors import seen
from penstock_workers.lanes.gpu.engine.engines import EngineCall, RequestRefused, upstream
from penstock_workers.lanes.gpu.requests.prompts import text_of
from penstock_workers.lanes.gpu.settings import GpuSettings


class MediaMemory:
    """The memory that images and sounds may take, on one event loop.

    A call that is forgotten, however its item ended, gives back what it held."""

    def __init__(self, most_bytes: int, *, at_once: int) -> None:
        """Bound what is decoded to ``most_bytes``.

        ``at_once`` is how many threads decode; the bound may be passed by what each of them decodes
        at that moment.
        """
        self._most = most_bytes
        self._turns = asyncio.Semaphore(at_once)
        self._held = 0
        self._freed = asyncio.Event()

    @property
    def held(self) -> int:
        return self._held

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until there is memory to decode into."""
        async with self._turns:
            while self._held >= self._most:
                self._freed.clear()
                await self._freed.wait()
            yield

    def hold(self, call: EngineCall) -> None:
        if call.media_bytes:
            self._held += call.media_bytes
            weakref.finalize(
                call, self._free_soon, asyncio.get_running_loop(), call.media_bytes
            ).atexit = False

    def _free_soon(self, loop: asyncio.AbstractEventLoop, size: int) -> None:
        """Free the memory on the loop, since a call can be forgotten in any thread."""
        with suppress(RuntimeError):  # the loop is closed, and nothing waits
            loop.call_soon_threadsafe(self._free, size)

    def _free(self, size: int) -> None:
        self._held -= size
        self._freed.set()


FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Of images. Pillow's other decoders are seldom asked for, and some of them start programs."""
_MODALITIES: Final[Mapping[str, str]] = {
    "image_url": "image",
    "input_audio": "audio",
    "audio_url": "audio",
}
_SOUND_PACKAGES: Final = ("soundfile", "av")  # vLLM reads sounds with one of them
_LOCAL: Final = ("", "localhost")


@dataclass(slots=True)
class Allowance:
    """The rest that the images and sounds of one item may come to."""

    items: int
    size: int  # bytes
    pixels: int


class Media:
    """The inputs that one model takes besides text."""

    def __init__(self, settings: GpuSettings, renderer: Any) -> None:
        """Learn from vLLM's ``renderer`` what is allowed.

        It knows the model's processor and what the operator allows per prompt."""
        self._settings = settings
        self._folder = (
            None if settings.media_folder is None else Path(settings.media_folder).resolve()
        )
        processor = renderer.mm_processor
        self._limits: Mapping[str, int] = (
            {} if processor is None else processor.info.allowed_mm_limits
        )
        config = renderer.model_config.multimodal_config
        self._image_options: Mapping[str, Any] = ((config and config.media_io_kwargs) or {}).get(
            "image", {}
        )

    @property
    def takes_any(self) -> bool:
        return bool(self._limits)

    def allowance(self) -> Allowance:
        """Return what one item may bring."""
        given = self._settings
        return Allowance(given.media_items_max, given.media_bytes_max, given.image_pixels_max)

    def part(self, part: Any, field: str, left: Allowance) -> dict[str, Any]:
        """Return a part of a message as vLLM's renderer takes it, decoded.

        Raises RequestRefused."""
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            return {"type": "text", "text": text_of(part, field)}
        modality = _MODALITIES.get(kind) if isinstance(kind, str) else None
        if modality is None or not self._limits.get(modality):
            found = seen(part if kind is None else kind)
            raise RequestRefused(f"{field} is {found}, and {self._words()}: leave it out")
        left.items -= 1
        if left.items < 0:
            most = self._settings.media_items_max
            raise RequestRefused(
                f"{field}: an item may have {most} images and sounds (gpu.media_items_max)"
            )
        return (
            self._image(part, field, left)
            if modality == "image"
            else self._sound(part, field, left)
        )

    def _words(self) -> str:
        known = [name for name in ("image", "audio") if self._limits.get(name)]
        return (
            f"this model takes {', '.join(['text', *known])} only"
            if known
            else "this model takes text only"
        )

    def _image(self, part: Mapping[str, Any], field: str, left: Allowance) -> dict[str, Any]:
        given = part.get("image_url")
        if isinstance(given, dict) and given.get("detail") not in (None, "auto"):
            raise RequestRefused(
                f"{field}.image_url.detail: a hosted model reads images in one way; leave it out"
            )
        _, data = self._content(
            _url(given, f"{field}.image_url"), "image", f"{field}.image_url", left
        )
        try:
            with import_module("PIL.Image").open(BytesIO(data), formats=FORMATS) as opened:
                width, height = opened.size
            left.pixels -= width * height
            if left.pixels >= 0:
                # Its turn, its transparency and its colours, as vLLM's server has them.
                reader = upstream("vllm.multimodal.media", "ImageMediaIO")(**self._image_options)
                return {"type": "image_pil", "image_pil": reader.load_bytes(data)}
        except MemoryError:
            raise
        except Exception as error:  # decoders raise what they like
            readable = f"{', '.join(FORMATS[:-1])} and {FORMATS[-1]} can be read"
            raise RequestRefused(
                f"{field} is no image that can be read ({type(error).__name__}); {readable}"
            ) from error
        raise RequestRefused(
            f"{field}: the image has {width} x {height} pixels, and an item's images may have "
            f"{self._settings.image_pixels_max} together (gpu.image_pixels_max): make it smaller"
        )

    def _sound(self, part: Mapping[str, Any], field: str, left: Allowance) -> dict[str, Any]:
        if not any(find_spec(name) for name in _SOUND_PACKAGES):
            raise RequestRefused(
                f"{field}: this worker has nothing to read sounds with: pip install 'vllm[audio]' "
                "there"
            )
        given = part.get(part["type"])
        if part["type"] == "audio_url":
            kind, data = self._content(
                _url(given, f"{field}.audio_url"), "audio", f"{field}.audio_url", left
            )
        else:
            if not isinstance(given, dict) or not isinstance(given.get("format"), str):
                raise RequestRefused(
                    f"{field}.input_audio is {seen(given)}: give an object with data and format"
                )
            kind, data = (
                given["format"],
                self._decoded(given.get("data"), f"{field}.input_audio.data", left),
            )
        if not kind.replace("-", "").replace(".", "").isalnum():
            raise RequestRefused(
                f"{field}: the format is {seen(kind)}: give one such as wav or mp3"
            )
        return {
            "type": "audio_url",
            "audio_url": {"url": f"data:audio/{kind};base64,{base64.b64encode(data).decode()}"},
        }

    def _content(self, url: str, modality: str, field: str, left: Allowance) -> tuple[str, bytes]:
        """Return the bytes that an address names, and of which kind the document says they are.

        Raises RequestRefused."""
        scheme = url[:16].partition(":")[0].lower()
        if scheme == "data":
            head, comma, data = url[5:].partition(",")
            kind, *options = head.split(";")
            if not comma or not kind.startswith(f"{modality}/") or "base64" not in options:
                raise RequestRefused(f"{field} is {seen(url)}: give data:{modality}/…;base64,…")
            return kind.partition("/")[2], self._decoded(data, field, left)
        if scheme == "file":
            return Path(urlsplit(url).path).suffix.lstrip(".") or "wav", self._file(
                url, field, left
            )
        raise RequestRefused(
            f"{field} is {seen(url)}: a worker fetches no address that a document names; send the "
            f"content itself, as data:{modality}/…;base64,…"
        )

    def _decoded(self, text: Any, field: str, left: Allowance) -> bytes:
        if not isinstance(text, str) or not text:
            raise RequestRefused(f"{field} is {seen(text)}: give base64")
        self._take(len(text) * 3 // 4 - text[-2:].count("="), field, left)
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise RequestRefused(
                f"{field} is no base64 ({error}): give it without line breaks"
            ) from error

    def _file(self, url: str, field: str, left: Allowance) -> bytes:
        """Read a file, of the operator's folder only, links followed."""
        if self._folder is None:
            raise RequestRefused(
                f"{field} is {seen(url)}: a worker reads no file that a document names, but from "
                "gpu.media_folder, which is not set; send the content itself as data:…;base64,…"
            )
        parts = urlsplit(url)
        try:
            file = Path(unquote(parts.path)).resolve()
            if (
                parts.netloc not in _LOCAL
                or not file.is_relative_to(self._folder)
                or not file.is_file()
            ):
                raise FileNotFoundError
            self._take(file.stat().st_size, field, left)
            with file.open("rb") as opened:
                return opened.read(self._settings.media_bytes_max)
        except (OSError, ValueError, RuntimeError) as error:
            raise RequestRefused(
                f"{field} is {seen(url)}: no file in gpu.media_folder that can be read"
            ) from error

    def _take(self, size: int, field: str, left: Allowance) -> None:
        left.size -= size
        if left.size < 0:
            raise RequestRefused(
                f"{field} has {size} bytes, and an item's images and sounds may have "
                f"{self._settings.media_bytes_max} together (gpu.media_bytes_max)"
            )


def _url(given: Any, field: str) -> str:
    """Return an address: OpenAI has an object with it, and some clients give the address itself."""
    url = given.get("url") if isinstance(given, dict) else given
    if not isinstance(url, str):
        raise RequestRefused(f"{field} is {seen(given)}: give an object with a url")
    return url
