"""Files of models and adapters that lie elsewhere: listed in a folder or a bucket, and kept in a
cache on this machine."""
