"""What becomes of requests that an engine did not answer, and of fields that hold what they cannot. No engine is needed."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from attempts import attempt_of

from penstock_workers.item.answer import Answer
from penstock_workers.item.failures import Failure, name_failure
from penstock_workers.item.fates import FATES
from penstock_workers.lanes.gpu.engines import RequestRefused
from penstock_workers.lanes.gpu.fields import check_types
from penstock_workers.lanes.gpu.outcomes import REASONS, unanswered
