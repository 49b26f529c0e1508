"""OpenAI's paths for files and batches, or those of a provider that has its form with
differences."""

from __future__ import annotations

from aiohttp import web

from penstock_simulate.answers import dialects
from penstock_simulate.batches.openai.batches import OpenAIBatches
from penstock_simulate.batches.openai.file_store import FileStore
from penstock_simulate.batches.openai.files import OpenAIFiles
from penstock_simulate.batches.openai.relatives import OPENAI, RELATIVES
from penstock_simulate.batches.sent import in_words_of
from penstock_simulate.batches.shop import BatchShop


def openai_routes(shop: BatchShop) -> list[web.RouteDef]:
    relative = RELATIVES.get(shop.config.like or "", OPENAI)
    store = FileStore(shop.folder)
    made = [
        *OpenAIFiles(shop, store, relative).routes(),
        *OpenAIBatches(shop, store, relative).routes(),
    ]
    return in_words_of(dialects.openai, made)
