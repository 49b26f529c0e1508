"""Bytes that are pinned: files, objects of buckets, and what is packed in them."""
