"""A folder, a prefix or a pattern of images or sounds, each behind the job's prompt.

A row has `file` (the content), `id`, `name`, `bytes` (how many) and `media_type`. `--image-field
file` or `--audio-field file` says that all of them are images, or sounds; without either each is
what its first bytes say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from penstock_producer.job.request_body import is_anthropic
from penstock_producer.job.spec import JobSpec
from penstock_producer.sources.forms.media import (
    MAX_BYTES,
    MediaParts,
    either_of,
    media_of,
    media_type_of,
)
from penstock_producer.sources.forms.row_forms import form_of
from penstock_producer.sources.forms.strict_json import RowFault
from penstock_producer.sources.listings.chosen import Chosen
from penstock_producer.sources.listings.listing import Entry
from penstock_producer.sources.readers.whole_files import FileOptions, WholeFiles, check_name

FILE: Final = "file"  # the column of the content


class MediaFiles(WholeFiles):
    """Each file is the image or the sound of one document.

    What is neither is a bad row by its name: cameras and people leave other files beside them.
    """

    has = (FILE, "id", "name", "bytes", "media_type")

    def __init__(self, chosen: Chosen, spec: JobSpec, options: FileOptions) -> None:
        max_body_bytes = options.max_body_bytes
        media: MediaParts | None
        if spec.image_fields or spec.audio_fields:
            asked, media = spec, media_of(spec, None, max_body_bytes)
        else:
            # Anthropic's Messages take no sounds, so that there only images can be meant.
            asked = spec.model_copy(update={"image_fields": [FILE]})
            media = (
                media_of(asked, None, max_body_bytes)
                if is_anthropic(spec.endpoint)
                else either_of(FILE, max_body_bytes)
            )
        if options.pin is None:  # the limit of rows is for texts
            options = replace(options, max_file_bytes=MAX_BYTES)
        super().__init__(chosen, asked, form_of(asked, max_body_bytes, media), options)

    def _row(self, entry: Entry, data: bytes) -> dict[str, Any]:
        check_name(entry.name)
        return {FILE: data, "bytes": entry.size, "media_type": media_type_of(data) or ""}

    def _too_large(self, entry: Entry) -> RowFault:
        return RowFault(
            "file_too_large",
            f"The file has {entry.size} bytes, and an image or a sound may have "
            f"{self._max_file_bytes}.",
            fix="make it smaller, or give rows with https:// addresses of images",
        )
