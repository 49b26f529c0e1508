"""Each kind of provider is asked in its way, in real time and in batches.

That is its addresses, and the headers that carry its key."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

from penstock_producer.job.endpoints import Kind
from penstock_workers.clouds import GoogleTokens, Signer
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


def address_of(provider: ProviderSettings, path: str) -> str:
    """Return the address of a request's path at a provider.

    Models of Gemini lie in a project at Vertex AI."""
    if provider.kind != "vertex":
        return address(provider.base_url, path)
    return f"{provider.base_url}{parent_of(provider)}/publishers/google{path[len(_BETA) :]}"


_BETA = "/v1beta"  # with which paths of Gemini begin


def parent_of(provider: ProviderSettings) -> str:
    """Return the path of a project's place at Vertex AI."""
    return f"/v1/projects/{provider.project}/locations/{provider.region}"


def signer_of(name: str, provider: ProviderSettings) -> Signer | GoogleTokens | None:
    """Return what signs a provider's requests; None for those that carry a key, or nothing.

    May ask the network. Raises NoCredentials."""
    if provider.api_key_env is not None:
        return None
    match provider.kind:
        case "bedrock":
            return Signer.of(name, "bedrock", provider.region)
        case "vertex":
            return GoogleTokens.of(name)
    return None


def control_url(base_url: str) -> str:
    """Return where Bedrock's models and batches are, which stand beside its runtime."""
    return base_url.replace("//bedrock-runtime", "//bedrock", 1)


def list_address(provider: ProviderSettings) -> str:
    """Return where a provider lists its models; Vertex AI, whose list is no project's, its jobs."""
    base_url = provider.base_url
    match provider.kind:
        case "bedrock":
            return control_url(base_url) + "/foundation-models"
        case "vertex":
            return f"{base_url}{parent_of(provider)}/batchPredictionJobs"
        case "gemini":
            return address(base_url, "/v1beta/models")
    return address(base_url, "/v1/models")
