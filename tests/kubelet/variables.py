"""A container's environment: `env` and `envFrom` with all that they may refer to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from kubelet.fields import Refused
from kubelet.namespace import Namespace

# what fieldRef finds, by path: metadata.name, status.podIP, metadata.labels['x'] …
Facts = Mapping[str, str]

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][\w.-]*)\)")
# empty where a pod has none of that name
OPEN_FIELDS = ("metadata.labels['", "metadata.annotations['")
KINDS = {
    "secretKeyRef": "Secret",
    "configMapKeyRef": "ConfigMap",
    "secretRef": "Secret",
    "configMapRef": "ConfigMap",
}


def facts_of(manifest: Mapping[str, Any], *, address: str, node: str) -> Facts:
    metadata = manifest["metadata"]
    facts = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata.get("namespace", "default"),
        "metadata.uid": metadata.get("uid", ""),
        "spec.nodeName": node,
        "spec.serviceAccountName": manifest["spec"].get("serviceAccountName", "default"),
        "status.podIP": address,
        "status.podIPs": address,
        "status.hostIP": "127.0.0.1",
    }
    for field in ("labels", "annotations"):
        facts |= {
            f"metadata.{field}['{key}']": value
            for key, value in (metadata.get(field) or {}).items()
        }
    return facts


def environment(
    container: Mapping[str, Any], facts: Facts, namespace: Namespace, here: Callable[[str], str]
) -> dict[str, str]:
    """Later entries win, and may refer to earlier ones as $(NAME). Raises Unresolved."""
    found: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        found |= _all_of(source, namespace)
    for entry in container.get("env", ()):
        value = _value(entry, found, facts, namespace, here)
        if value is not None:
            found[entry["name"]] = value
    return found


def check(container: Mapping[str, Any], facts: Facts) -> None:
    """Raises Refused where a variable is a field of the pod that this kubelet does not know."""
    for entry in container.get("env", ()):
        path = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        if path is not None and path not in facts and not path.startswith(OPEN_FIELDS):
            raise Refused(
                f"container {container['name']!r}: {entry['name']} is the pod's {path!r}: known "
                f"are {sorted(facts)}"
            )


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """$(NAME) by its value, where there is one; $$ is a dollar sign."""
    return _REFERENCE.sub(
        lambda match: "$" if match[0] == "$$" else variables.get(match[1], match[0]), text
    )


def _all_of(source: Mapping[str, Any], namespace: Namespace) -> dict[str, str]:
    ((kind, reference),) = ((kind, source[kind]) for kind in source.keys() & KINDS.keys())
    texts = namespace.all(KINDS[kind], reference["name"], optional=reference.get("optional", False))
    return {source.get("prefix", "") + key: value for key, value in texts.items()}


def _value(
    entry: Mapping[str, Any],
    found: Mapping[str, str],
    facts: Facts,
    namespace: Namespace,
    here: Callable[[str], str],
) -> str | None:
    if "valueFrom" not in entry:
        return expanded(here(entry.get("value", "")), found)
    ((kind, reference),) = entry["valueFrom"].items()
    if kind in KINDS:
        optional = reference.get("optional", False)
        return namespace.one(KINDS[kind], reference["name"], reference["key"], optional=optional)
    path: str = reference["fieldPath"]
    return facts.get(path, "") if path.startswith(OPEN_FIELDS) else facts[path]
