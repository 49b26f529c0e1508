"""A Kubernetes API server, spoken to as it is: a kubeconfig's address and credentials, JSON over
HTTPS, no client library."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import yaml

TIMEOUT_S = 30.0
GONE = 404
MANAGER = "penstock-tests"
JSON, MERGE, APPLY = (
    "application/json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
)

Object = dict[str, Any]


class ApiError(Exception):
    """The server said no."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """One server, with the credentials of a kubeconfig's current context."""

    def __init__(self, server: str, trust: ssl.SSLContext | None, token: str | None) -> None:
        self._server = server.rstrip("/")
        self._trust = trust
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._kinds: dict[str, dict[str, Object]] = {}
        self.warnings: list[str] = []  # of the last call

    @classmethod
    def of(cls, kubeconfig: Path, folder: Path) -> Self:
        """Certificates are copied to ``folder``, because TLS wants files."""
        config = yaml.safe_load(kubeconfig.read_text("utf-8"))
        named = {
            section: {one["name"]: one for one in config[section]}
            for section in ("clusters", "contexts", "users")
        }
        context = named["contexts"][config["current-context"]]["context"]
        cluster = named["clusters"][context["cluster"]]["cluster"]
        user = named["users"][context["user"]].get("user") or {}
        assert "exec" not in user, (
            f"{kubeconfig}: user {context['user']!r} logs in by a program; tests take no such "
            "clusters"
        )
        return cls(cluster["server"], _trust(cluster, user, folder), user.get("token"))

    def call(
        self, method: str, path: str, body: Object | None = None, content: str = JSON
    ) -> Object:
        """Raises ApiError."""
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers | {"Content-Type": content, "Accept": JSON}
        request = urllib.request.Request(self._server + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self._trust) as answer:
                self.warnings = answer.headers.get_all("Warning") or []
                found: Object = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            raise ApiError(error.code, error.read().decode(errors="replace")) from None

    def apply(self, manifest: Object, *, dry_run: bool = False) -> Object:
        """Server-side apply: made, or brought to what the manifest says; or only looked at.

        Raises ApiError, also for a field that the server does not know."""
        name = manifest["metadata"]["name"]
        asked = (
            f"fieldManager={MANAGER}&force=true&fieldValidation=Strict" + "&dryRun=All" * dry_run
        )
        return self.call("PATCH", f"{self.path(manifest)}/{name}?{asked}", manifest, APPLY)

    def knows(self, version: str, kind: str) -> bool:
        """Whether the cluster has objects of such a kind."""
        try:
            return kind in self._resources(version)
        except ApiError as error:
            if error.status != GONE:
                raise
            return False

    def path(self, manifest: Mapping[str, Any]) -> str:
        """Of all objects of a manifest's kind, in its namespace if they have one."""
        version = manifest["apiVersion"]
        resource = self._resources(version)[manifest["kind"]]
        place = f"/namespaces/{manifest['metadata']['namespace']}" if resource["namespaced"] else ""
        return f"{_root(version)}{place}/{resource['name']}"

    def _resources(self, version: str) -> dict[str, Object]:
        """What a version of a group has, by kind."""
        if version not in self._kinds:
            found = self.call("GET", _root(version))["resources"]
            self._kinds[version] = {one["kind"]: one for one in found if "/" not in one["name"]}
        return self._kinds[version]


def _root(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def _trust(cluster: Object, user: Object, folder: Path) -> ssl.SSLContext | None:
    if cluster["server"].startswith("http://"):
        return None
    authority = _file(cluster, "certificate-authority", folder)
    trust = ssl.create_default_context(cafile=authority)
    if cluster.get("insecure-skip-tls-verify"):
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    certificate = _file(user, "client-certificate", folder)
    if certificate is not None:
        trust.load_cert_chain(certificate, _file(user, "client-key", folder))
    return trust


def _file(section: Object, field: str, folder: Path) -> str | None:
    """The path that a field names, or a file of what the field's own data holds."""
    data = section.get(f"{field}-data")
    if data is None:
        path: str | None = section.get(field)
        return path
    copy = folder / field
    copy.touch(mode=0o600)
    copy.write_bytes(base64.b64decode(data))
    return str(copy)
