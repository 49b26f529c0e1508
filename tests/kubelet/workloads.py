"""The pods that controllers would make of a manifest."""

from __future__ import annotations

import copy
from typing import Any

from kubelet.fields import Refused

Manifest = dict[str, Any]
WITH_TEMPLATES = ("Deployment", "StatefulSet", "Job")


def one_pod(manifest: Manifest, number: int = 0) -> Manifest:
    """The pod of that number of a Deployment, StatefulSet or Job; a Pod is its own.

    Raises Refused."""
    kind = manifest["kind"]
    if kind == "Pod":
        return manifest
    if kind not in WITH_TEMPLATES:
        raise Refused(
            f"{kind} {manifest['metadata']['name']!r}: pods are made of "
            f"{', '.join(WITH_TEMPLATES)} and Pod"
        )
    template = copy.deepcopy(manifest["spec"]["template"])
    name = f"{manifest['metadata']['name']}-{number}"
    metadata = template.get("metadata", {}) | {
        "name": name,
        "namespace": manifest["metadata"].get("namespace"),
    }
    spec = template["spec"]
    spec["volumes"] = [*spec.get("volumes", ()), *_claims(manifest, name)]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _claims(manifest: Manifest, pod: str) -> list[dict[str, Any]]:
    names = [
        claim["metadata"]["name"] for claim in manifest["spec"].get("volumeClaimTemplates", ())
    ]
    return [
        {"name": name, "persistentVolumeClaim": {"claimName": f"{name}-{pod}"}} for name in names
    ]
