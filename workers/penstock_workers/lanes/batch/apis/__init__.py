"""The dialects of batch APIs: how OpenAI, Anthropic and Gemini take, show and answer a batch.

``open_batches`` makes the one that a provider's settings name, by its kind and its profile.
"""

from __future__ import annotations

from penstock_ratelimit import profile_for
from penstock_workers.lanes.batch.apis.anthropic import AnthropicBatches
from penstock_workers.lanes.batch.apis.gemini import VERSION, GeminiBatches
from penstock_workers.lanes.batch.apis.http import Account, BatchHttp, Times
from penstock_workers.lanes.batch.apis.openai import OPENAI, SHAPES, OpenAIBatches
from penstock_workers.lanes.batch.apis.provider import BatchProvider
from penstock_workers.provider_calls import headers_of
from penstock_workers.settings import ProviderSettings


def open_batches(
    name: str, provider: ProviderSettings, times: Times | None = None
) -> BatchProvider:
    """Open the batch API of a provider; no loop need run yet. Raises MissingApiKey, PlainHttp."""
    key, shape = provider.api_key(name), OPENAI
    headers = headers_of(provider.kind, key)
    if provider.kind == "openai":
        shape = SHAPES.get(profile_for(provider.base_url, provider.profile).name, OPENAI)
        if key and shape.key_header is not None:
            headers = {**headers_of("openai", None), shape.key_header: key}
    base_url = (
        provider.base_url.removesuffix(VERSION) if provider.kind == "gemini" else provider.base_url
    )
    http = BatchHttp(Account(name, base_url, headers, provider.proxy), times)
    match provider.kind:
        case "anthropic":
            return AnthropicBatches(http)
        case "gemini":
            return GeminiBatches(http)
    return OpenAIBatches(http, shape)
