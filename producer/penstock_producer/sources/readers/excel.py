"""One sheet of an Excel workbook over any blob, by openpyxl, an extra: `penstock[excel]`.

A workbook is a zip of XML, which is read from its start: rows come as they are needed, and none is
kept. A formula has the value that Excel has stored with it. What the zip says of its sizes is
looked at before anything is unpacked.
"""

from __future__ import annotations

import itertools
import re
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, time, timedelta
from typing import Any, Final

from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import BadReference, SourceError, seen
from penstock_producer.job.spec import JobSpec
from penstock_producer.rows import ROW, BadRow, Column, Document, Record
from penstock_producer.source_formats import FORMATS
from penstock_producer.sources.blobs.blob import Blob, BlobFile
from penstock_producer.sources.forms.row_forms import check_columns
from penstock_producer.sources.forms.strict_json import RowFault
from penstock_producer.sources.readers.columnar import plain
from penstock_producer.sources.readers.rows import ROWS, PinnedRows, RowOptions

MAX_UNPACKED_BYTES: Final = 2 * 1024**3
"""Of all parts of a workbook: a sheet of a million rows with twenty short columns has as much."""
MAX_STRINGS_BYTES: Final = 256 * 1024**2
"""Of the texts that cells share, which are all in memory while a sheet is read, some fourfold."""
MAX_PARTS: Final = 10_000
MAX_COLUMNS: Final = 16_384  # of Excel itself
_STRINGS: Final = "xl/sharedStrings.xml"
_POSITION: Final = re.compile(r"(\d{1,7}):(\d{1,7})", re.ASCII)  # "row of the sheet:row of data"


class ExcelSource(PinnedRows):
    """Documents of one sheet.

    A position is "row of the sheet:row of data", a cursor the rows of data before the next one."""

    unit = ROW

    def __init__(self, blob: Blob, spec: JobSpec, options: RowOptions) -> None:
        super().__init__(blob, spec, options)
        self._size = options.size
        self._sheet = spec.sheet
        self._names: list[str] | None = None
        self._lock = threading.Lock()
        self._ahead = self._rows()
        self._read_to = 0  # the last row of data that ``_ahead`` has given

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        for line, number, record in itertools.islice(self._rows(), int(cursor.get(ROWS, 0)), None):
            yield self._read(line, number, record)

    def fetch(self, position: str) -> Document:
        """Read one document, by going forward from the one that was fetched last.

        Raises BadReference for a position that the survey cannot have given.
        """
        found = _POSITION.fullmatch(position)
        wanted = 0 if found is None else int(found[2])
        with self._lock:
            if wanted <= self._read_to:
                self._ahead, self._read_to = self._rows(), 0
            for line, number, record in self._ahead:
                self._read_to = number
                if number == wanted:
                    document = self._read(line, number, record)
                    if isinstance(document, BadRow):
                        raise self._no_document(position, document.code, document.message)
                    return document._replace(line=0, cursor={})
            self._read_to = 0
        raise BadReference(f"{seen(position)} is not the position of a document in {self.uri}")

    def columns(self) -> Sequence[Column]:
        next(self._rows(), None)
        return [Column(name, "text") for name in self._names or ()]

    def records(self) -> Iterator[Record]:
        for line, _, record in self._rows():
            yield Record(line, record)

    def _read(self, line: int, number: int, record: Mapping[str, Any]) -> Document | BadRow:
        cursor = {ROWS: number}
        try:
            size = sum(len(value) for value in record.values() if isinstance(value, str))
            if size > self._max_line_bytes:
                raise RowFault(
                    "line_too_long",
                    f"The row has {size} characters, and max_line_bytes allows "
                    f"{self._max_line_bytes}.",
                    fix="split it, or raise max_line_bytes where documents really are larger",
                )
            row = {name: plain(_in_words(value), name) for name, value in record.items()}
            doc_id, body, endpoint = self._form.read(self._with_number(row, number))
        except RowFault as fault:
            return self._bad(line, fault, cursor)
        return Document(doc_id, body, f"{line}:{number}", line, cursor, endpoint)

    def _rows(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Yield each row that is not empty: its number in the sheet, that among them, its cells."""
        sheet = self._opened()
        number = 0
        names: list[str] = []
        try:
            cells = sheet.iter_rows(values_only=True)
            for line, values in enumerate(cells, 1):
                if all(value is None for value in values):
                    continue
                if not names:
                    names = self._header(values)
                    continue
                number += 1
                yield line, number, dict(itertools.zip_longest(names, values[: len(names)]))
        except (zipfile.BadZipFile, SyntaxError, KeyError, ValueError, OSError) as error:
            raise self._damaged(error) from error  # SyntaxError: of XML

    def _header(self, values: Sequence[Any]) -> list[str]:
        names = ["" if value is None else str(_in_words(value)) for value in values]
        while names and not names[-1]:
            names.pop()
        if len(names) > MAX_COLUMNS:
            raise SourceError(
                "too_many_columns",
                f"{self.uri} has more than {MAX_COLUMNS:,} columns, which no sheet of Excel has",
            )
        twice = (
            {name for name in names if names.count(name) > 1}
            if len(set(names)) < len(names)
            else set()
        )
        if twice:
            raise SourceError(
                "duplicate_column",
                f"{self.uri} has two columns {seen(min(twice))}; rename one of them",
            )
        if self._names is None:
            check_columns(self.uri, self._form, names, nested=False, id_field=self.id_field)
            self._names = names
        return names

    def _opened(self) -> Any:
        """Return the sheet, opened anew. Raises SourceError for what cannot be read."""
        FORMATS[self._written_as].require()
        from openpyxl import load_workbook
        from openpyxl.utils.exceptions import InvalidFileException

        size = int(self._blob.pin()["size"]) if self._size is None else self._size
        file: Any = BlobFile(self._blob, size)
        try:
            self._check_sizes(file)
            file.seek(0)
            book = load_workbook(file, read_only=True, data_only=True, keep_links=False)
        except (
            zipfile.BadZipFile,
            InvalidFileException,
            SyntaxError,
            KeyError,
            ValueError,
            TypeError,
            OSError,
        ) as error:
            raise self._damaged(error) from error
        names = [sheet.title for sheet in book.worksheets]
        if self._sheet is not None and self._sheet not in names:
            raise SourceError(
                "missing_sheet",
                Text(
                    f"{self.uri} has no sheet {seen(self._sheet)}; name one of: "
                    f"{', '.join(map(seen, names[:20]))} (",
                    SetOption("sheet"),
                    ")",
                ),
            )
        if not names:
            raise SourceError(
                "empty_source", f"{self.uri} has no sheet with cells; give one that has"
            )
        sheet = book[self._sheet or names[0]]
        sheet.reset_dimensions()  # what a file says of its size need not be true
        return sheet

    def _check_sizes(self, file: Any) -> None:
        """Raise SourceError for a workbook that unpacks to more than is read."""
        with zipfile.ZipFile(file) as packed:
            parts = packed.infolist()
        whole = sum(part.file_size for part in parts)
        strings = sum(part.file_size for part in parts if part.filename == _STRINGS)
        if whole > MAX_UNPACKED_BYTES or strings > MAX_STRINGS_BYTES or len(parts) > MAX_PARTS:
            raise SourceError(
                "workbook_too_large",
                f"{self.uri} unpacks to {whole:,} bytes in {len(parts):,} parts, {strings:,} of "
                f"them shared texts; read are {MAX_UNPACKED_BYTES:,}, {MAX_PARTS:,} and "
                f"{MAX_STRINGS_BYTES:,}. Save it as CSV",
            )

    def _damaged(self, error: Exception) -> SourceError:
        reason = str(error).partition("\n")[0][:200]
        return SourceError(
            "invalid_xlsx",
            f"{self.uri} cannot be read as a workbook ({reason}); save it again as .xlsx, without "
            "a password",
        )


def _in_words(value: Any) -> Any:
    """Return a day without the midnight that Excel gives it, and a span of time as text."""
    if isinstance(value, datetime) and value.time() == time(0):
        return value.date()
    return str(value) if isinstance(value, timedelta) else value
