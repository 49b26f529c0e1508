"""What containers refer to by name: the Secrets and ConfigMaps of one namespace."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any, Self


class Unresolved(Exception):
    """A container names what is not there.

    Kubernetes calls it CreateContainerConfigError, and waits."""


class Namespace:
    """Secrets and ConfigMaps as text."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], dict[str, str]] = {}

    @classmethod
    def of(cls, manifests: Iterable[Mapping[str, Any]]) -> Self:
        """Of what is among these manifests; the rest is no business of a kubelet's."""
        namespace = cls()
        namespace.learn(manifests)
        return namespace

    def learn(self, manifests: Iterable[Mapping[str, Any]]) -> None:
        for manifest in manifests:
            if manifest["kind"] in ("Secret", "ConfigMap"):
                self.put(manifest["kind"], manifest["metadata"]["name"], **_texts(manifest))

    def put(self, kind: str, name: str, **texts: str) -> None:
        """Add keys to an object, or replace them; an object that is not there is made."""
        self._held.setdefault((kind, name), {}).update(texts)

    def all(self, kind: str, name: str, *, optional: bool = False) -> dict[str, str]:
        """Raises Unresolved."""
        found = self._held.get((kind, name))
        if found is None and not optional:
            raise Unresolved(f"{kind.lower()} {name!r} not found")
        return dict(found or {})

    def one(self, kind: str, name: str, key: str, *, optional: bool = False) -> str | None:
        """None where it is optional and not there. Raises Unresolved."""
        found = self.all(kind, name, optional=optional)
        if key not in found and not optional:
            raise Unresolved(
                f"couldn't find key {key!r} in {kind.lower()} {name!r}: it has {sorted(found)}"
            )
        return found.get(key)


def _texts(manifest: Mapping[str, Any]) -> dict[str, str]:
    data: dict[str, str] = manifest.get("data") or {}
    if manifest["kind"] == "Secret":
        data = {key: base64.b64decode(value).decode() for key, value in data.items()}
    return data | (manifest.get("stringData") or {})
