"""Transcripts of recordings, and images: what requests must have, and what their answers hold."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

import orjson

from penstock_simulate.answers import refusals
from penstock_simulate.answers.answers import CREATED_AT, tokens_of
from penstock_simulate.answers.refusals import Refusal
from penstock_simulate.reply import Usage

TRANSCRIPTIONS: Final = "/v1/audio/transcriptions"
IMAGES: Final = "/v1/images/generations"
IMAGE_EDITS: Final = "/v1/images/edits"
MEDIA: Final = frozenset({TRANSCRIPTIONS, IMAGES, IMAGE_EDITS})
FILES: Final = "files"  # of a form, as its request has them here: digest, bytes and type of each
MAX_FILE_BYTES: Final = 26_214_400
BYTES_PER_S: Final = 16_000  # of a recording: 128 kbit/s
BYTES_PER_TOKEN: Final = 1_600  # ten tokens for each second
IMAGE_TOKENS: Final = 272  # of an image of 1024 x 1024 in low quality
MAX_IMAGES: Final = 10
SIDE: Final = 64  # pixels of an image that is made
_DURATION: Final = "whisper-1"  # the model that is paid by the minute


def refusal_of(endpoint: str, body: Mapping[str, Any]) -> Refusal | None:
    """Return what is wrong with a request; None where it can be worked on."""
    files = body.get(FILES, [])
    if endpoint != IMAGES:
        field = "file" if endpoint == TRANSCRIPTIONS else "image"
        if not files:
            return refusals.invalid(f"[] is too short - '{field}'", field)
        for one in files:
            if one["bytes"] > MAX_FILE_BYTES:
                told = f"Maximum content size limit ({MAX_FILE_BYTES}) exceeded"
                return refusals.invalid(f"{told} ({one['bytes']} bytes read)", status=413)
            if not one["bytes"]:
                return refusals.invalid("The file is empty or its format is not supported.", field)
    if endpoint == TRANSCRIPTIONS:
        return None
    if not isinstance(body.get("prompt"), str) or not body["prompt"]:
        return refusals.invalid("Missing required parameter: 'prompt'.", "prompt")
    if not 1 <= _number(body) <= MAX_IMAGES:
        return refusals.invalid(f"'n' must be between 1 and {MAX_IMAGES}.", "n")
    return None


def tokens_in(endpoint: str, body: Mapping[str, Any]) -> int:
    """Return the tokens of a request's prompt, those of its files among them."""
    prompt = body.get("prompt")
    text = tokens_of(prompt) if isinstance(prompt, str) else 0
    if endpoint == TRANSCRIPTIONS and body.get("model") == _DURATION:
        return text
    return max(1, text + _media_tokens(endpoint, body))


def answer(endpoint: str, body: Mapping[str, Any], url: str) -> tuple[bytes, Usage]:
    """Return a good answer and its usage; ``url`` is where images that are not in it lie."""
    prompt = tokens_in(endpoint, body)
    if endpoint == TRANSCRIPTIONS:
        return _transcript(body, prompt)
    images = [_png(f"{body.get('prompt')} {at} {body.get(FILES)}") for at in range(_number(body))]
    usage = Usage(prompt, IMAGE_TOKENS * len(images))
    wants_url = body.get("response_format") == "url"
    data = [
        {"url": f"{url}/images/{sha256(one).hexdigest()}.png"}
        if wants_url
        else {"b64_json": base64.b64encode(one).decode()}
        for one in images
    ]
    media = _media_tokens(endpoint, body)
    counted = {
        "total_tokens": usage.prompt + usage.completion,
        "input_tokens": prompt,
        "output_tokens": usage.completion,
        "input_tokens_details": {"text_tokens": prompt - media, "image_tokens": media},
    }
    made.update({sha256(one).hexdigest(): one for one in images} if wants_url else {})
    return orjson.dumps({"created": CREATED_AT, "data": data, "usage": counted}), usage


made: Final[dict[str, bytes]] = {}
"""Images that were answered by their address, by their digest."""


def _transcript(body: Mapping[str, Any], prompt: int) -> tuple[bytes, Usage]:
    (recording,) = body[FILES][:1]
    text = f"This is recording {recording['sha256'][:8]} of {recording['bytes']} bytes."
    seconds = max(1, recording["bytes"] // BYTES_PER_S)
    told: dict[str, Any] = {"text": text}
    usage = Usage(prompt, tokens_of(text))
    if body.get("model") == _DURATION:
        usage, told["usage"] = Usage(0, 0), {"type": "duration", "seconds": seconds}
    else:
        media = _media_tokens(TRANSCRIPTIONS, body)
        told["usage"] = {
            "type": "tokens",
            "input_tokens": prompt,
            "input_token_details": {"text_tokens": prompt - media, "audio_tokens": media},
            "output_tokens": usage.completion,
            "total_tokens": prompt + usage.completion,
        }
    if body.get("response_format") == "verbose_json":
        segment = {"id": 0, "start": 0.0, "end": float(seconds), "text": text}
        told |= {"task": "transcribe", "language": "english", "duration": float(seconds)}
        told["segments"] = [segment]
    return orjson.dumps(told), usage


def _media_tokens(endpoint: str, body: Mapping[str, Any]) -> int:
    per = BYTES_PER_TOKEN if endpoint == TRANSCRIPTIONS else MAX_FILE_BYTES
    return sum(max(1, one["bytes"] // per) for one in body.get(FILES, []))


def _number(body: Mapping[str, Any]) -> int:
    given = body.get("n", 1)  # a form has it as text
    return int(given) if str(given).isdecimal() else 0


def _png(seed: str) -> bytes:
    """Return an image of one colour, which follows from the seed."""
    row = b"\0" + sha256(seed.encode("utf-8", "surrogatepass")).digest()[:3] * SIDE
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(row * SIDE)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
