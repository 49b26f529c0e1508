"""Times and limits that make no sense, in Retry-After and in the headers of limits."""

from __future__ import annotations

from penstock_simulate.hostile.kinds import JSON, Kind, error, fixed, with_headers

BUSY = error("Rate limit reached.", "rate_limit_exceeded", "requests")
RETRY_AFTER = {
    "hour": ("an hour", "3600"),
    "negative": ("-5", "-5"),
    "past": ("a date in the past", "Thu, 01 Jan 1970 00:00:00 GMT"),
    "garbage": ("'soon'", "soon"),
    "endless": ("1e400", "1e400"),
}
LIMIT = "x-ratelimit-limit-"
LEFT = "x-ratelimit-remaining-"
RESET = "x-ratelimit-reset-"
LIMITS = {
    "limit-requests": ("one request per minute", {f"{LIMIT}requests": "1", f"{LEFT}requests": "0"}),
    "limit-tokens": ("ten tokens per minute", {f"{LIMIT}tokens": "10", f"{LEFT}tokens": "0"}),
    "limit-nonsense": (
        "nonsense",
        {
            f"{LIMIT}requests": "1e400",
            f"{LEFT}requests": "-7",
            f"{LIMIT}tokens": "many",
            f"{RESET}tokens": "0x10",
        },
    ),
}

KINDS = (
    *(
        Kind(
            f"retry-after-{name}",
            f"429 with Retry-After: {line}",
            fixed(429, BUSY, {**JSON, "Retry-After": value}),
        )
        for name, (line, value) in RETRY_AFTER.items()
    ),
    *(
        Kind(
            name,
            f"a good answer whose headers name {line} as the limit",
            with_headers(headers),
            answers=True,
        )
        for name, (line, headers) in LIMITS.items()
    ),
)
