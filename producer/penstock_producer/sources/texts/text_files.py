"""A folder, a prefix or a pattern of texts: a prompt may use `{text}`, `{id}`, `{name}` and
`{size}` of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock_producer.errors import SourceError
from penstock_producer.job.formats import TEXT, UTF_8
from penstock_producer.job.spec import JobSpec
from penstock_producer.sources.forms.row_forms import form_of
from penstock_producer.sources.forms.strict_json import RowFault
from penstock_producer.sources.listings.chosen import Chosen
from penstock_producer.sources.listings.listing import Entry, shown
from penstock_producer.sources.media.parts import media_of
from penstock_producer.sources.readers.file_format import has_text_ending
from penstock_producer.sources.texts.text import text_of
from penstock_producer.sources.texts.whole_files import WholeFiles

KIND: Final = "texts"


class TextFiles(WholeFiles):
    """Each file is the text of one document."""

    kind = KIND
    columns = ("text", "id", "name", "size")

    def __init__(
        self,
        chosen: Chosen,
        spec: JobSpec,
        max_line_bytes: int,
        max_body_bytes: int,
        *,
        pin: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        form = form_of(spec, max_body_bytes, media_of(spec, None, max_body_bytes))
        super().__init__(
            chosen,
            spec,
            form,
            max_file_bytes=max_line_bytes,
            max_body_bytes=max_body_bytes,
            pin=pin,
            timeout_s=timeout_s,
        )
        self._encoding = spec.encoding or UTF_8
        self._mixed = spec.format == TEXT or bool(
            chosen.pattern
        )  # names need not say that they are texts

    def _expect(self, entry: Entry) -> None:
        if not self._mixed and not has_text_ending(entry.name):
            raise SourceError(
                "unsupported_format",
                f"{self.uri} holds texts, and {shown(self.uri, entry.name)}, whose name does not "
                f"say that it is one; name the files to read by a pattern such as {self.uri}*.txt, "
                "or read all as texts with --format text",
            )

    def _row(self, entry: Entry, data: bytes) -> dict[str, Any]:
        return {"text": text_of(entry.name, data, self._encoding), "size": entry.size}

    def _too_large(self, entry: Entry) -> RowFault:
        return RowFault(
            "file_too_large",
            f"The file has {entry.size} bytes, and the setting max_line_bytes allows "
            f"{self._max_file_bytes}.",
            fix="split it, or raise max_line_bytes where documents really are larger",
        )
