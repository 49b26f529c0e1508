"""Where a pod's volumes and its network lie on this machine: folders, and a loopback address of its
own.

Paths and addresses that a manifest spells out are swapped for those of here. What comes out of
Secrets and ConfigMaps stays as it is: it names servers outside the pod.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kubelet.namespace import Namespace

_BEFORE, _AFTER = r"(?<![\w./-])", r"(?=$|[/\s\"':;,)])"
# A pod has a network of its own: its localhost, and "every interface", are its one address.
_OWN_ADDRESS = r"(?<![\w.])(?:127\.0\.0\.1|0\.0\.0\.0|localhost)(?![\w.])"

FILES = {"configMap": ("ConfigMap", "name"), "secret": ("Secret", "secretName")}


class Places:
    """The volumes of one pod, made when this is. Raises Unresolved."""

    def __init__(
        self,
        folder: Path,
        claims: Path,
        address: str,
        spec: Mapping[str, Any],
        namespace: Namespace,
    ) -> None:
        self.folder = folder
        self.address = address
        self._claims = claims
        self._namespace = namespace
        self._volumes = {volume["name"]: self._made(volume) for volume in spec.get("volumes", ())}

    def volume(self, name: str) -> Path:
        return self._volumes[name]

    def mounts(self, container: Mapping[str, Any]) -> dict[str, Path]:
        """Paths within the container, and what is there."""
        found = {}
        for mount in container.get("volumeMounts", ()):
            path = self._volumes[mount["name"]] / mount.get("subPath", "")
            if not path.exists():
                path.mkdir(parents=True)
            found[mount["mountPath"].rstrip("/")] = path
        return found

    def here(self, text: str, container: Mapping[str, Any]) -> str:
        """``text`` with the container's paths and the pod's own address as they are on this
        machine."""
        mounts = self.mounts(container)
        paths = "|".join(re.escape(path) for path in sorted(mounts, key=len, reverse=True))
        pattern = "|".join([f"{_BEFORE}(?:{paths}){_AFTER}"] * bool(paths) + [_OWN_ADDRESS])
        return re.sub(pattern, lambda match: str(mounts.get(match[0], self.address)), text)

    def _made(self, volume: Mapping[str, Any]) -> Path:
        (kind,) = volume.keys() - {"name"} or {"emptyDir"}  # which others are refused: fields.py
        path = self.folder / "volumes" / str(volume["name"])
        if kind == "persistentVolumeClaim":
            path = self._claims / str(volume[kind]["claimName"])
        path.mkdir(parents=True, exist_ok=True)
        if kind in FILES:
            self._write(path, kind, volume[kind])
        return path

    def _write(self, folder: Path, kind: str, source: Mapping[str, Any]) -> None:
        """Raises Unresolved."""
        what, field = FILES[kind]
        texts = self._namespace.all(what, source[field], optional=source.get("optional", False))
        names = {item["key"]: item["path"] for item in source.get("items", ())} or {
            key: key for key in texts
        }
        for key, name in names.items():
            (folder / name).write_text(texts[key], "utf-8")
