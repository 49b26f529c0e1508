"""Each kind of provider is asked in its way, in real time and in batches.

That is its addresses, and the headers that carry its key."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

from penstock_producer.job.endpoints import Kind
from penstock_workers.aws import Signer
from penstock_workers.settings import ProviderSettings

ANTHROPIC_VERSION = "2023-06-01"  # of its API: what an answer looks like


def address(base_url: str, path: str) -> str:
    """Return the address of a path.

    Base URLs are customary with and without their version (`/v1`); ``path`` always begins with it.
    """
    head = "/" + path.split("/", 2)[1]
    return base_url + (path.removeprefix(head) if base_url.endswith(head) else path)


def headers_of(kind: Kind, key: str | None) -> Mapping[str, str]:
    """Return the headers of each call."""
    always = {"User-Agent": f"penstock/{version('penstock')}"}
    if kind == "anthropic":
        always["anthropic-version"] = ANTHROPIC_VERSION
    if not key:
        return always
    match kind:
        case "anthropic":
            return always | {"x-api-key": key}
        case "gemini":
            return always | {"x-goog-api-key": key}
    return always | {"Authorization": f"Bearer {key}"}


def signer_of(name: str, provider: ProviderSettings) -> Signer | None:
    """Return what signs a provider's requests; None for those that carry a key, or nothing.

    May ask the network. Raises NoCredentials."""
    if provider.kind != "bedrock" or provider.api_key_env is not None:
        return None
    return Signer.of(name, "bedrock", provider.region)


def control_url(base_url: str) -> str:
    """Return where Bedrock's models and batches are, which stand beside its runtime."""
    return base_url.replace("//bedrock-runtime", "//bedrock", 1)


def list_address(kind: Kind, base_url: str) -> str:
    """Return where a provider lists its models."""
    if kind == "bedrock":
        return control_url(base_url) + "/foundation-models"
    return address(base_url, "/v1beta/models" if kind == "gemini" else "/v1/models")
