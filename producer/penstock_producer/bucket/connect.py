"""A client of S3, with bounded patience, for those who read and those who write, and of the queues that buckets notify.

boto3 is imported when the first client is made: it is an extra (`pip install penstock[s3]`).
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["CONNECT_TIMEOUT_S", "READ_TIMEOUT_S", "connected"]

CONNECT_TIMEOUT_S: Final = 10
READ_TIMEOUT_S: Final = 60


def connected(endpoint_url: str | None, *, tries: int, service: str = "s3", region: str | None = None) -> Any:
    """``tries`` are those of one request, with backoff. Credentials and region are boto3's own affair, and where no endpoint
    is given, that as well (AWS_ENDPOINT_URL_S3). Nothing is asked yet. Raises ImportError without boto3.
    """
    import boto3
    from botocore.config import Config

    retries = {"mode": "standard", "total_max_attempts": tries}
    config = Config(connect_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S, retries=retries)
    return boto3.client(service, endpoint_url=endpoint_url, config=config, region_name=region)
