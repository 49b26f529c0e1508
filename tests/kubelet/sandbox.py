"""What the containers of one pod share, and what one of them is started with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubelet.images import Image, base_environment, image_of
from kubelet.journal import Journal
from kubelet.namespace import Namespace
from kubelet.places import Places
from kubelet.probes import Target
from kubelet.process import Machine
from kubelet.variables import Facts, environment, expanded


@dataclass(frozen=True)
class Sandbox:
    """Of one pod."""

    name: str
    folder: Path
    grace_s: float
    pace: float  # the seconds between probes, and those of a back-off, are divided by it
    places: Places
    facts: Facts
    namespace: Namespace
    images: Mapping[str, Image]
    journal: Journal
    machine: Machine

    def log(self, container: str) -> Path:
        return self.folder / f"{container}.log"

    def prepare(self, container: Mapping[str, Any]) -> Prepared:
        """Raises Unresolved, and Refused for an image that has no program here."""

        def here(text: str) -> str:
            return self.places.here(text, container)

        image = image_of(container, self.images)
        variables = environment(container, self.facts, self.namespace, here)
        words = {
            part: [expanded(here(word), variables) for word in container[part]]
            for part in ("command", "args")
            if part in container
        }
        return Prepared(
            argv=image.argv(words),
            environment=self._own(container) | variables,
            folder=self._working_folder(container),
            image=image,
            sandbox=self,
            container=container,
        )

    def _own(self, container: Mapping[str, Any]) -> dict[str, str]:
        """What a container finds without asking: its image's variables, its name, and a /tmp.

        POD_IP is for programs of images that listen on every address, which here is one."""
        temporary = self.places.mounts(container).get(
            "/tmp", self.folder / "root" / container["name"]
        )
        return base_environment() | {
            "HOSTNAME": self.name,
            "POD_IP": self.places.address,
            "HOME": str(temporary),
            "TMPDIR": str(temporary),
        }

    def _working_folder(self, container: Mapping[str, Any]) -> Path:
        wanted = container.get("workingDir", "")
        found = self.places.here(wanted, container)
        folder = Path(found) if found != wanted else self.folder / "root" / container["name"]
        folder.mkdir(parents=True, exist_ok=True)
        return folder


@dataclass(frozen=True)
class Prepared:
    """A container with everything looked up."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    image: Image
    sandbox: Sandbox
    container: Mapping[str, Any]

    def target(self) -> Target:
        ports = {
            port["name"]: port["containerPort"]
            for port in self.container.get("ports", ())
            if "name" in port
        }
        return Target(self.sandbox.places.address, ports, self.run)

    async def run(self, command: Sequence[str]) -> tuple[int, str]:
        """A command within the container, as `kubectl exec` and exec probes do. Raises OSError."""
        words = [self.sandbox.places.here(word, self.container) for word in command]
        return await self.sandbox.machine.output_of(
            self.image.local(words), self.environment, self.folder
        )
