"""Job spec files: everything that the flags of `penstock run` and `submit` can say, in one YAML or
JSON file."""

from penstock_producer.jobfile.load import JobFile, is_job_file, read_lines, read_text
from penstock_producer.jobfile.tree import FileFault

__all__ = ["FileFault", "JobFile", "is_job_file", "read_lines", "read_text"]
