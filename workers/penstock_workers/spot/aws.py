"""AWS: IMDSv2's `spot/instance-action`, which is not there until the notice of two minutes."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from penstock_workers.http import HttpAnswer, Target
from penstock_workers.http.lean import LeanClient
from penstock_workers.spot.notice import (
    TIMEOUT_S,
    Notice,
    Unusable,
    believed,
    expect_ok,
    json_object,
    shown,
)

TOKEN_PATH: Final = "/latest/api/token"  # noqa: S105 - where a token is fetched
ACTION_PATH: Final = "/latest/meta-data/spot/instance-action"
TOKEN_HEADER: Final = "X-aws-ec2-metadata-token"  # noqa: S105 - the name of a header
# the longest there is; once it has ended the service answers 401, and a new one is fetched
TOKEN_TTL_S: Final = 21_600
MAX_TOKEN_CHARS: Final = 1024  # real ones have 56
ACTIONS: Final = frozenset({"terminate", "stop", "hibernate"})


class AwsService:
    """Implements ``SpotService``. Pods reach it where the node's hop limit is 2 or more."""

    cloud = "aws"
    interval_s = 5.0  # as AWS advises

    def __init__(self, url: str) -> None:
        self._token_target = Target.of(
            url + TOKEN_PATH, {f"{TOKEN_HEADER}-ttl-seconds": str(TOKEN_TTL_S)}
        )
        self._action_url = url + ACTION_PATH
        self._token: str | None = None

    async def look(self, client: LeanClient) -> Notice | None:
        answer = await self._ask(client)
        if answer.status == 401:
            self._token = None
            answer = await self._ask(client)
        if answer.status == 404:
            return None
        expect_ok(answer, ACTION_PATH)
        return _read(answer)

    async def _ask(self, client: LeanClient) -> HttpAnswer:
        if self._token is None:
            self._token = await self._new_token(client)
        return await client.get(
            Target.of(self._action_url, {TOKEN_HEADER: self._token}), timeout_s=TIMEOUT_S
        )

    async def _new_token(self, client: LeanClient) -> str:
        answer = await client.put(self._token_target, timeout_s=TIMEOUT_S)
        expect_ok(answer, f"PUT {TOKEN_PATH}")
        token = answer.body.decode("latin-1").strip()
        if (
            not token
            or len(token) > MAX_TOKEN_CHARS
            or not (token.isascii() and token.isprintable())
        ):
            raise Unusable(
                f"it answered PUT {TOKEN_PATH} with {len(answer.body)} bytes that are not a token"
            )
        return token


def _read(answer: HttpAnswer) -> Notice:
    found = json_object(answer, ACTION_PATH)
    action, time = found.get("action"), found.get("time")
    if not isinstance(action, str) or action not in ACTIONS:
        raise Unusable(
            f"its notice has the action {shown(action)}; known are {', '.join(sorted(ACTIONS))}"
        )
    try:
        ends_at = datetime.fromisoformat(time) if isinstance(time, str) else None
    except ValueError:
        ends_at = None
    if ends_at is None:
        raise Unusable(
            f"its notice ({action}) has the time {shown(time)}, which is not a time in ISO 8601"
        )
    return believed(AwsService.cloud, action, ends_at)
