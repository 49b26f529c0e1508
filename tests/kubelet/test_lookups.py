"""What a container's manifest refers to, looked up without a process: variables, volumes, images,
workloads."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from kubelet import Image, Namespace, Unresolved, one_pod
from kubelet.images import image_of
from kubelet.places import Places
from kubelet.variables import environment, expanded, facts_of

MANIFEST = {"metadata": {"name": "p", "labels": {"team": "a"}}, "spec": {}}
FACTS = facts_of(MANIFEST, address="127.0.0.9", node="n")


def variables(namespace: Namespace, **container: Any) -> dict[str, str]:
    return environment(container, FACTS, namespace, lambda text: text)


def by_key(name: str, kind: str, key: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "valueFrom": {kind: {"name": "it", "key": key, **more}}}


def test_variables_of_secrets_and_configmaps(namespace: Namespace) -> None:
    """One key by its reference, and all keys with a prefix; what `env` says wins over `envFrom`."""
    env_from = [
        {"prefix": "S_", "secretRef": {"name": "keys"}},
        {"configMapRef": {"name": "texts"}},
    ]
    key = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "openai"}}}
    found = variables(namespace, envFrom=env_from, env=[key, {"name": "MODE", "value": "slow"}])
    assert found == {"S_openai": "sk-1", "a.toml": "[a]", "MODE": "slow", "KEY": "sk-1"}


@pytest.mark.parametrize("kind", ["secretKeyRef", "configMapKeyRef"])
def test_a_reference_may_be_optional(kind: str) -> None:
    """What is optional and not there leaves the variable unset; what is not optional is named in
    the error."""
    assert variables(Namespace(), env=[by_key("A", kind, "k", optional=True)]) == {}
    with pytest.raises(Unresolved, match="'it' not found"):
        variables(Namespace(), env=[by_key("A", kind, "k")])


def test_a_key_that_is_missing_is_named(namespace: Namespace) -> None:
    """The error names the key, the object and the keys that it has."""
    entry = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "openay"}}}
    with pytest.raises(Unresolved) as missing:
        variables(namespace, env=[entry])
    assert str(missing.value) == "couldn't find key 'openay' in secret 'keys': it has ['openai']"


def test_fields_of_the_pod() -> None:
    """Name, node, address and labels are those of the pod; a label that it does not have is
    empty."""
    paths = [
        "metadata.name",
        "spec.nodeName",
        "status.podIP",
        "metadata.labels['team']",
        "metadata.labels['gone']",
    ]
    env = [
        {"name": str(n), "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for n, path in enumerate(paths)
    ]
    assert list(variables(Namespace(), env=env).values()) == ["p", "n", "127.0.0.9", "a", ""]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("$(A)-$(B)", "1-$(B)"), ("$$(A)", "$(A)"), ("$A $()", "$A $()"), ("$(A)$(A)", "11")],
)
def test_references_in_texts(text: str, wanted: str) -> None:
    """$(NAME) is the value of a variable that exists, $$ a dollar sign, and everything else
    stays."""
    assert expanded(text, {"A": "1"}) == wanted


def test_secrets_are_read_as_the_api_has_them() -> None:
    """`data` of a Secret is base64, `stringData` is text and wins; a ConfigMap's data is text;
    other kinds are none of these."""
    data = {"a": base64.b64encode(b"one").decode(), "b": base64.b64encode(b"two").decode()}
    secret = {
        "kind": "Secret",
        "metadata": {"name": "s"},
        "data": data,
        "stringData": {"b": "three"},
    }
    texts = {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "text"}}
    namespace = Namespace.of(
        [secret, texts, {"kind": "Service", "metadata": {"name": "s"}, "spec": {}}]
    )
    assert namespace.all("Secret", "s") == {"a": "one", "b": "three"}
    assert namespace.all("ConfigMap", "c") == {"a": "text"}
    with pytest.raises(Unresolved):
        namespace.all("Service", "s")


def places(folder: Path, namespace: Namespace, *volumes: dict[str, Any], pod: str = "p") -> Places:
    return Places(folder / pod, folder / "claims", "127.0.0.9", {"volumes": volumes}, namespace)


def test_volumes_hold_their_objects_files(namespace: Namespace, tmp_path: Path) -> None:
    """A ConfigMap's keys are files, `items` chooses and renames them, and a claim is one folder for
    all pods that name it."""
    chosen = {"name": "texts", "items": [{"key": "a.toml", "path": "b.toml"}]}
    claim = {"name": "disk", "persistentVolumeClaim": {"claimName": "models"}}
    volumes = [
        {"name": "all", "secret": {"secretName": "keys"}},
        {"name": "some", "configMap": chosen},
        claim,
    ]
    found = places(tmp_path, namespace, *volumes)
    assert (found.volume("all") / "openai").read_text() == "sk-1"
    assert [path.name for path in found.volume("some").iterdir()] == ["b.toml"]
    assert found.volume("disk") == places(tmp_path, namespace, claim, pod="q").volume("disk")


def test_paths_and_addresses_are_those_of_here(tmp_path: Path) -> None:
    """A mounted path is its volume's folder, the deepest mount wins, localhost is the pod's
    address; other texts stay."""
    container = {
        "volumeMounts": [
            {"name": "v", "mountPath": "/data"},
            {"name": "w", "mountPath": "/data/deep", "subPath": "x"},
        ]
    }
    found = places(tmp_path, Namespace(), {"name": "v"}, {"name": "w", "emptyDir": {}})
    v, w = found.volume("v"), found.volume("w")
    assert found.here("/data/f --at=/data/deep/g", container) == f"{v}/f --at={w}/x/g"
    assert found.here("http://localhost:80 0.0.0.0", container) == "http://127.0.0.9:80 127.0.0.9"
    assert (
        found.here("/database /my/data 10.127.0.0.1", container)
        == "/database /my/data 10.127.0.0.1"
    )


@pytest.mark.parametrize(
    "image", ["penstock", "penstock:1", "penstock@sha256:ab", "penstock:1@sha256:ab"]
)
def test_an_image_is_known_by_its_repository(image: str) -> None:
    """Tag and digest make no difference."""
    known = Image(("run",))
    assert image_of({"image": image}, {"penstock": known}) is known


def test_a_registrys_port_is_no_tag() -> None:
    """The repository is all before the tag, with the registry's port."""
    known = Image(("run",))
    assert image_of({"image": "host:5000/penstock"}, {"host:5000/penstock": known}) is known


@pytest.mark.parametrize(
    ("container", "argv"),
    [
        ({}, ["here", "run"]),
        ({"args": ["a"]}, ["here", "run", "a"]),
        ({"command": ["sh"], "args": ["a"]}, ["here", "sh", "a"]),
    ],
)
def test_a_command_replaces_the_entry_point(container: dict[str, Any], argv: list[str]) -> None:
    """`args` follow the image's entry point, or the `command` that replaces it; the image says what
    that is here."""
    assert Image(("run",), lambda words: ["here", *words]).argv(container) == argv


def test_one_pod_of_a_stateful_set() -> None:
    """It has the set's name and a number, the template's labels, and claims of its own."""
    template: dict[str, Any] = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [], "volumes": [{"name": "v"}]},
    }
    claims = [{"metadata": {"name": "data"}}]
    manifest = {
        "kind": "StatefulSet",
        "metadata": {"name": "redis", "namespace": "n"},
        "spec": {"template": template, "volumeClaimTemplates": claims},
    }
    pod = one_pod(manifest, 2)
    assert pod["metadata"] == {"name": "redis-2", "namespace": "n", "labels": {"a": "b"}}
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data-redis-2"}}
    assert pod["spec"]["volumes"] == [{"name": "v"}, claim]
    assert template["spec"]["volumes"] == [{"name": "v"}]
