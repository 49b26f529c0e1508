"""Clients of S3, of the queues that buckets notify, and of other stores: with bounded patience, for
those who read and who write.

boto3 and obstore are imported when the first client is made: they are extras (`pip install
penstock[s3]`, `penstock[stores]`).
"""

from __future__ import annotations

import datetime
import os
from typing import Any, Final

__all__ = ["CONNECT_TIMEOUT_S", "READ_TIMEOUT_S", "STORES", "connected", "store_at"]

STORES: Final = ("gs", "az")  # Google Cloud Storage and Azure

CONNECT_TIMEOUT_S: Final = 10
READ_TIMEOUT_S: Final = 60


def connected(
    endpoint_url: str | None, *, tries: int, service: str = "s3", region: str | None = None
) -> Any:
    """``tries`` are those of one request, with backoff.

    Credentials and region are boto3's own affair, and where no endpoint is given, that as well
    (AWS_ENDPOINT_URL_S3). Nothing is asked yet. Raises ImportError without boto3.
    """
    import boto3
    from botocore.config import Config

    retries = {"mode": "standard", "total_max_attempts": tries}
    config = Config(connect_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S, retries=retries)
    return boto3.client(service, endpoint_url=endpoint_url, config=config, region_name=region)


def store_at(scheme: str, bucket: str, *, tries: int) -> Any:
    """A bucket of Google Cloud Storage, or a container of Azure.

    Credentials and the account are obstore's own affair, by the environment. Nothing is asked yet.
    Raises ImportError without obstore, and its errors where the environment has no account.
    """
    from obstore.store import AzureStore, GCSStore

    make: Any
    make, cloud = (GCSStore, "GOOGLE") if scheme == "gs" else (AzureStore, "AZURE")
    options: dict[str, Any] = {
        "client_options": {
            "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
            "timeout": f"{READ_TIMEOUT_S}s",
            "allow_http": os.environ.get(f"{cloud}_ALLOW_HTTP", "").lower() in ("1", "true"),
        },
        "retry_config": {
            "max_retries": tries - 1,
            "retry_timeout": datetime.timedelta(seconds=READ_TIMEOUT_S * tries),
        },
    }
    return make(bucket, **options)
