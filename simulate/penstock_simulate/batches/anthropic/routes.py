"""Anthropic's paths for message batches."""

from __future__ import annotations

from aiohttp import web

from penstock_simulate.answers import dialects
from penstock_simulate.batches.anthropic.batches import AnthropicBatches
from penstock_simulate.batches.sent import in_words_of
from penstock_simulate.batches.shop import BatchShop


def anthropic_routes(shop: BatchShop) -> list[web.RouteDef]:
    return in_words_of(dialects.anthropic, AnthropicBatches(shop).routes())
