"""An upload's form has one file, its purpose, and how long it lives; in any order."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from penstock_gateway.files.multipart import FormPart
from penstock_gateway.refused import Refused

__all__ = ["BATCH", "OUTPUT", "PURPOSES", "UploadForm"]

BATCH: Final = "batch"
OUTPUT: Final = "batch_output"  # what batches write; no upload has it
PURPOSES: Final = (
    "assistants",
    BATCH,
    "evals",
    "fine-tune",
    "user_data",
    "vision",
)  # OpenAI's, of uploads
DAY_S: Final = 86_400
LIVES_S: Final = (3_600, 30 * DAY_S)  # what `expires_after[seconds]` may be
BATCH_LIVES_S: Final = 30 * DAY_S  # of files for batches, where the form says nothing
VALUE_MAX: Final = 1_024  # bytes of one field
FILENAME_MAX: Final = 255  # characters that are kept

FILE: Final = "file"
PURPOSE: Final = "purpose"
ANCHOR: Final = "expires_after[anchor]"
SECONDS: Final = "expires_after[seconds]"


@dataclass(slots=True)
class UploadForm:
    """The fields so far. ``filename`` is None until the file's part has begun."""

    fields: ClassVar[Mapping[str, int]] = dict.fromkeys((PURPOSE, ANCHOR, SECONDS), VALUE_MAX)
    """Those beside the file, and how many bytes each may have."""

    filename: str | None = None
    values: dict[str, bytearray] = field(default_factory=dict)

    def begin(self, part: FormPart) -> bool:
        """Begin a part, and return whether it is the file.

        Raises Refused for what an upload does not have, or has twice."""
        if part.name == FILE:
            if part.filename is None:
                raise Refused(
                    400,
                    "'file' must be a file with a file name, not a text field",
                    code="invalid_type",
                    param=FILE,
                )
            if self.filename is not None:
                raise Refused(
                    400, "give one file; this form has several", code="invalid_value", param=FILE
                )
            self.filename = shown_name(part.filename)
            return True
        if part.name not in self.fields:
            known = ", ".join((FILE, *self.fields))
            raise Refused(
                400,
                f"Unknown parameter: {part.name[:80]!r}; an upload has {known}",
                code="unknown_parameter",
                param=part.name[:80],
            )
        if part.name in self.values:
            raise Refused(
                400, f"{part.name!r} is given twice", code="invalid_value", param=part.name
            )
        self.values[part.name] = bytearray()
        return False

    def add(self, name: str, data: bytes) -> None:
        """Add bytes to a field."""
        value = self.values[name]
        value += data
        if len(value) > (most := self.fields[name]):
            raise Refused(
                400, f"{name!r} has more than {most} bytes", code="invalid_value", param=name
            )

    @property
    def purpose(self) -> str:
        """Raises Refused."""
        purpose = self.text(PURPOSE)
        if purpose is None:
            raise Refused(
                400,
                "Missing required parameter: 'purpose'.",
                code="missing_required_parameter",
                param=PURPOSE,
            )
        if purpose not in PURPOSES:
            known = ", ".join(map(repr, PURPOSES))
            raise Refused(
                400,
                f"{purpose[:80]!r} is not a purpose of uploads; give one of {known}",
                code="invalid_value",
                param=PURPOSE,
            )
        return purpose

    @property
    def lives_s(self) -> float | None:
        """Return how long the file is kept; None: until it is deleted. Raises Refused."""
        anchor, seconds = self.text(ANCHOR), self.text(SECONDS)
        if anchor is None and seconds is None:
            return BATCH_LIVES_S if self.text(PURPOSE) == BATCH else None
        if anchor != "created_at":
            raise Refused(400, f"{ANCHOR} must be 'created_at'", code="invalid_value", param=ANCHOR)
        least, most = LIVES_S
        if (
            seconds is None
            or not re.fullmatch("[0-9]{1,9}", seconds)
            or not least <= int(seconds) <= most
        ):
            raise Refused(
                400,
                f"{SECONDS} must be a whole number from {least} to {most}",
                code="invalid_value",
                param=SECONDS,
            )
        return float(seconds)

    def check(self) -> None:
        """Check the form once all parts are there. Raises Refused."""
        if self.filename is None:
            raise Refused(
                400,
                "Missing required parameter: 'file'.",
                code="missing_required_parameter",
                param=FILE,
            )
        _ = self.purpose, self.lives_s

    def text(self, name: str) -> str | None:
        """Return a field as it was typed; None where the form has none."""
        value = self.values.get(name)
        return None if value is None else value.decode("utf-8", "replace").strip()


def shown_name(given: str) -> str:
    """Return the last part of a name, without what no name should have.

    It is shown, and never becomes a path."""
    last = re.split(r"[/\\]", given)[-1]
    clean = "".join(
        one for one in last if unicodedata.category(one) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
    ).strip()
    return clean[:FILENAME_MAX] if clean not in ("", ".", "..") else "upload"
