"""Job spec files: all that the flags of `penstock run` and `submit` say, in YAML or JSON."""

from penstock_producer.jobfile.load import JobFile, is_job_file, read_lines, read_text
from penstock_producer.jobfile.tree import FileFault

__all__ = ["FileFault", "JobFile", "is_job_file", "read_lines", "read_text"]
