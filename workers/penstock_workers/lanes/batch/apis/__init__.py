"""The dialects of batch APIs: how providers take, show and answer a batch.

``open_batches`` makes the one that a provider's settings name, by its kind and its profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial

from penstock_ratelimit import profile_for
from penstock_workers.clouds import GoogleTokens, Signer, s3_address
from penstock_workers.errors import BatchSettingMissing
from penstock_workers.lanes.batch.apis.anthropic import AnthropicBatches
from penstock_workers.lanes.batch.apis.bedrock import BedrockBatches, Place
from penstock_workers.lanes.batch.apis.gemini import VERSION, GeminiBatches
from penstock_workers.lanes.batch.apis.http import Account, BatchHttp, Times
from penstock_workers.lanes.batch.apis.openai import OPENAI, SHAPES, OpenAIBatches
from penstock_workers.lanes.batch.apis.provider import BatchProvider
from penstock_workers.lanes.batch.apis.vertex import Place as VertexPlace
from penstock_workers.lanes.batch.apis.vertex import VertexBatches
from penstock_workers.provider_calls import control_url, headers_of, parent_of
from penstock_workers.settings import ProviderSettings


def open_batches(
    name: str, provider: ProviderSettings, times: Times | None = None
) -> BatchProvider:
    """Open the batch API of a provider; no loop need run yet.

    Raises MissingApiKey, PlainHttp and BatchSettingMissing."""
    key, shape = provider.api_key(name), OPENAI
    headers = headers_of(provider.kind, key)
    if provider.kind == "openai":
        shape = SHAPES.get(profile_for(provider.base_url, provider.profile).name, OPENAI)
        if key and shape.key_header is not None:
            headers = {**headers_of("openai", None), shape.key_header: key}
    base_url = (
        provider.base_url.removesuffix(VERSION) if provider.kind == "gemini" else provider.base_url
    )
    if provider.kind == "bedrock":
        return _bedrock(name, provider, headers, times)
    if provider.kind == "vertex":
        return _vertex(name, provider, headers, times)
    http = BatchHttp(Account(name, base_url, headers, provider.proxy), times)
    match provider.kind:
        case "anthropic":
            return AnthropicBatches(http)
        case "gemini":
            return GeminiBatches(http)
    return OpenAIBatches(http, shape)


def _bedrock(
    name: str, provider: ProviderSettings, headers: Mapping[str, str], times: Times | None
) -> BedrockBatches:
    """Open Bedrock's batches. Files in S3 are asked for with AWS credentials in any case."""
    bucket, role = provider.batch_bucket, provider.batch_role
    if bucket is None or not bucket.startswith("s3://"):
        raise BatchSettingMissing(
            name, "batch_bucket", 'where its batches lie in S3, such as "s3://bucket/penstock"'
        )
    if role is None:
        what = "the ARN of a role that Bedrock may take on to read and write there"
        raise BatchSettingMissing(name, "batch_role", what)
    is_signed, control = provider.api_key_env is None, control_url(provider.base_url)
    signed = lru_cache(maxsize=1)(partial(Signer.of, name, "bedrock", provider.region))
    jobs = Account(name, control, headers, provider.proxy, signed if is_signed else None)
    files = Account(
        f"{name} (S3)",
        s3_address(provider.region),
        headers_of(provider.kind, None),
        provider.proxy,
        lambda: signed().of_service("s3"),
    )
    place = Place(bucket, role, provider.least_in_batch)
    return BedrockBatches(BatchHttp(jobs, times), BatchHttp(files, times), place)


GCS = "https://storage.googleapis.com"


def _vertex(
    name: str, provider: ProviderSettings, headers: Mapping[str, str], times: Times | None
) -> VertexBatches:
    """Open Vertex AI's batches. Files lie in Google's storage, or at an address of one's own."""
    bucket = provider.batch_bucket
    if bucket is None or not bucket.startswith("gs://"):
        what = 'where its batches lie in Cloud Storage, such as "gs://bucket/penstock"'
        raise BatchSettingMissing(name, "batch_bucket", what)
    is_googles = provider.base_url.endswith(".googleapis.com")
    made = lru_cache(maxsize=1)(partial(GoogleTokens.of, name))
    tokens = made if provider.api_key_env is None else None
    storage = GCS if is_googles else provider.base_url
    jobs = Account(name, provider.base_url, headers, provider.proxy, tokens)
    files = Account(f"{name} (GCS)", storage, headers, provider.proxy, tokens)
    place = VertexPlace(parent_of(provider), bucket)
    return VertexBatches(BatchHttp(jobs, times), BatchHttp(files, times), place)
