"""Penstock's other packages use these beside the public names.

Not a public interface: it changes without notice."""

from penstock_ratelimit.estimates import FLUSH_S
from penstock_ratelimit.fairness import CLASS_STEP, DEFAULT_FLOW, FairLine
from penstock_ratelimit.provider.profiles import MAX_TOKENS_BELIEVED
from penstock_ratelimit.provider.refusals import DETAIL_CHARS, is_page
from penstock_ratelimit.shared.dispatcher import RETRIES_LEAVE, cancel_and_wait
from penstock_ratelimit.shared.interactive import InteractiveControl, Ours
from penstock_ratelimit.store.messages import Breaker
from penstock_ratelimit.store.quota_hash import ScriptClient, lift_hold
from penstock_ratelimit.watch import (
    MAX_LEARNED,
    DimensionView,
    LearnedView,
    QuotaView,
    Traffic,
    read_quotas,
)

__all__ = [
    "CLASS_STEP",
    "DEFAULT_FLOW",
    "DETAIL_CHARS",
    "FLUSH_S",
    "MAX_LEARNED",
    "MAX_TOKENS_BELIEVED",
    "RETRIES_LEAVE",
    "Breaker",
    "DimensionView",
    "FairLine",
    "InteractiveControl",
    "LearnedView",
    "Ours",
    "QuotaView",
    "ScriptClient",
    "Traffic",
    "cancel_and_wait",
    "is_page",
    "lift_hold",
    "read_quotas",
]
