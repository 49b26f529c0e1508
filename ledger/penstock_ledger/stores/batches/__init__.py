"""Batches at providers: the journal, what it says, and the documents that they left."""
