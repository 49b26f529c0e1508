"""Read the documents of a job from wherever they lie."""

from penstock_producer.rows import BadRow, Document, FileSource, Source
from penstock_producer.sources.forms.row_forms import columns_read
from penstock_producer.sources.open import open_source, refuse_unreadable

__all__ = [
    "BadRow",
    "Document",
    "FileSource",
    "Source",
    "columns_read",
    "open_source",
    "refuse_unreadable",
]
