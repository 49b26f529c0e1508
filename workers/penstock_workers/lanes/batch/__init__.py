"""The `batch` lane: documents packed into batches of a provider, at half price and within a day."""
