"""Gemini's paths for files and batches."""

from __future__ import annotations

from aiohttp import web

from penstock_simulate.answers import dialects
from penstock_simulate.batches.gemini.batches import GeminiBatches
from penstock_simulate.batches.gemini.files import GeminiFiles
from penstock_simulate.batches.sent import in_words_of
from penstock_simulate.batches.shop import BatchShop


def gemini_routes(shop: BatchShop) -> list[web.RouteDef]:
    files = GeminiFiles(shop)
    return in_words_of(dialects.gemini, [*files.routes(), *GeminiBatches(shop, files).routes()])
