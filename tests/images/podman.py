"""podman for tests, with a storage of its own: nothing of the user's images and containers is seen
or changed.

It also works where a container engine usually does not: inside a virtual machine without systemd,
without the right to set resource limits, and without a registry. Then images of official names are
stand-ins made with Debian's debootstrap.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
STANDINS = Path(__file__).with_name("standins")
DEBIAN = "localhost/penstock-test-debian"
PULL_S = 600.0
BUILD_S = 1_500.0
COMMAND_S = 300.0

# Where this machine's pip finds its packages; read-only in these builds, and in no layer.
PIP_FILES = ("/etc/ssl/certs", "/etc/pip.conf", str(Path.home() / ".config" / "pip"))

_STORAGE = """[storage]
driver = "{driver}"
runroot = "{folder}/run"
graphroot = "{folder}/graph"
"""
_CONTAINERS = """[engine]
runtime = "test"
cgroup_manager = "cgroupfs"
events_logger = "file"
[engine.runtimes]
test = ["{folder}/runtime"]
"""
# Limits that a machine may not set are left out of what the runtime is asked for.
# crun, podman's usual one, refuses machines that have both versions of cgroups.
_RUNTIMES = ("runc", "crun")
_RUNTIME = """#!{python}
import json, os, sys
flags = dict(zip(sys.argv, sys.argv[1:]))
bundle, process = flags.get("--bundle") or flags.get("-b"), flags.get("--process") or flags.get("-p")
for path in filter(None, (bundle and os.path.join(bundle, "config.json"), process if "exec" in sys.argv else None)):
    with open(path) as file:
        config = json.load(file)
    asked = config.get("process", config)
    asked.pop("rlimits", None)
    asked.pop("oomScoreAdj", None)
    with open(path, "w") as file:
        json.dump(config, file)
os.execv({runtime!r}, [{runtime!r}, *sys.argv[1:]])
"""


class NoPodman(Exception):
    """Containers cannot be run here; the message says why."""


def _overlays(folder: Path) -> bool:
    """Whether layers can lie over one another here; where they cannot, each is a copy of all below
    it, which takes ten times as long and as much."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        lower, upper, work, whole = (Path(place) / name for name in ("l", "u", "w", "m"))
        for one in (lower, upper, work, whole):
            one.mkdir()
        given = f"lowerdir={lower},upperdir={upper},workdir={work}"
        argv = ["mount", "-t", "overlay", "overlay", "-o", given, str(whole)]
        if subprocess.run(argv, capture_output=True).returncode:
            return False
        subprocess.run(["umount", str(whole)], check=True)
        return True


class Podman:
    """One storage in one folder."""

    def __init__(self, folder: Path) -> None:
        runtime = next(filter(None, map(shutil.which, _RUNTIMES)), None)
        if shutil.which("podman") is None or runtime is None:
            raise NoPodman(
                f"no podman, or no {' and no '.join(_RUNTIMES)}: "
                "apt-get install podman runc debootstrap"
            )
        if os.geteuid() != 0:
            raise NoPodman("images are built as root here: sudo make test-images")
        self.folder = folder
        driver = "overlay" if _overlays(folder) else "vfs"
        self._write("storage.conf", _STORAGE.format(folder=folder, driver=driver))
        self._write("containers.conf", _CONTAINERS.format(folder=folder))
        self._write("runtime", _RUNTIME.format(python=sys.executable, runtime=runtime)).chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        return dict(os.environ) | {
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def run(self, *arguments: str, timeout_s: float = COMMAND_S, check: bool = True) -> str:
        """What `podman …` says."""
        return self.command("podman", *arguments, timeout_s=timeout_s, check=check)

    def command(
        self, *argv: str, cwd: Path = ROOT, timeout_s: float = COMMAND_S, check: bool = True
    ) -> str:
        done = subprocess.run(
            argv,
            cwd=cwd,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
        )
        if check and done.returncode:
            raise AssertionError(
                f"{' '.join(argv)}: exit status {done.returncode}\n{done.stdout[-4_000:]}"
            )
        return done.stdout

    def build(
        self,
        tag: str,
        file: Path,
        context: Path,
        *,
        mounted: Sequence[str] = (),
        layers: bool = True,
        **arguments: str,
    ) -> None:
        """Build an image; without ``layers`` a step keeps no copy of all that is below it."""
        mounts = [f"--volume={path}:{path}:ro" for path in mounted if Path(path).exists()]
        given = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        self.run(
            "build",
            "--isolation=chroot",
            "--network=host",
            f"--layers={str(layers).lower()}",
            *mounts,
            *given,
            f"--tag=localhost/{tag}",
            f"--file={file}",
            str(context),
            timeout_s=BUILD_S,
        )

    def provide(self, name: str, standin: str) -> str:
        """The image of this name: pulled where a registry is reached, else its stand-in."""
        if self.run("images", "--quiet", name):
            return name
        try:
            self.run("pull", "--quiet", f"docker.io/library/{name}", timeout_s=PULL_S)
        except (AssertionError, subprocess.TimeoutExpired):
            self._debian()
            self.build(name, STANDINS / f"{standin}.Containerfile", STANDINS)
        return name

    def inspect(self, name: str) -> dict[str, object]:
        (found,) = json.loads(self.run("inspect", name))
        return dict(found)

    def _debian(self) -> None:
        """A minimal Debian as an image."""
        if self.run("images", "--quiet", DEBIAN):
            return
        if shutil.which("debootstrap") is None:
            raise NoPodman(
                "no registry is reached, and no debootstrap is here: apt-get install debootstrap"
            )
        root = self.folder / "debian"
        self.command("debootstrap", "--variant=minbase", "bookworm", str(root), timeout_s=BUILD_S)
        archive = self.folder / "debian.tar"
        self.command("tar", "-C", str(root), "-cf", str(archive), ".")
        self.run("import", str(archive), DEBIAN)
        shutil.rmtree(root)
        archive.unlink()

    def _write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path


class Project:
    """One compose project in a folder of its own, through podman-compose."""

    def __init__(self, podman: Podman, folder: Path, name: str) -> None:
        self._podman, self._folder, self._name = podman, folder, name

    def compose(self, *arguments: str, timeout_s: float = COMMAND_S, check: bool = True) -> str:
        argv = ("podman-compose", "--project-name", self._name, *arguments)
        return self._podman.command(*argv, cwd=self._folder, timeout_s=timeout_s, check=check)

    def container(self, service: str) -> str:
        return f"{self._name}_{service}_1"

    def logs(self, service: str) -> str:
        return self._podman.run("logs", self.container(service), check=False)

    def exit_status(self, service: str, timeout_s: float) -> int:
        """Of a container that ends by itself. podman 4.3 waits without end, so it is asked."""
        deadline = time.monotonic() + timeout_s
        while True:
            state = self._podman.inspect(self.container(service))["State"]
            assert isinstance(state, dict)
            if state["Status"] == "exited":
                return int(state["ExitCode"])
            assert time.monotonic() < deadline, (
                f"{service} has not ended: {self.logs(service)[-3_000:]}"
            )
            time.sleep(1)

    @contextmanager
    def up(self, *waves: Sequence[str], profile: str) -> Iterator[None]:
        """Start services, those of a wave together; what ends by itself must have ended well before
        the next wave.

        These are the conditions of `depends_on`, kept by hand: podman 4.3 knows no
        `service_healthy`, and starts nothing that requires a container which has ended.
        """
        try:
            for wave in waves:
                self.compose(
                    "--profile",
                    profile,
                    "up",
                    "--detach",
                    "--no-build",
                    "--no-deps",
                    *wave,
                    timeout_s=600,
                )
                for service in {"migrate"} & set(wave):
                    assert self.exit_status(service, COMMAND_S) == 0, self.logs(service)
            yield
        finally:
            self.compose("--profile", profile, "down", "--volumes", "--timeout", "10", check=False)
