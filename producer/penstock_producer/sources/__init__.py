"""Where documents come from."""

from penstock_producer.rows import BadRow, Document, FileSource, Source
from penstock_producer.sources.expand import refuse_unreadable
from penstock_producer.sources.open import open_source

__all__ = ["BadRow", "Document", "FileSource", "Source", "open_source", "refuse_unreadable"]
