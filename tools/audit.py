"""`make audit`: a bill of materials of an environment, and which of its packages have known
vulnerabilities.

It writes `sbom.json` (CycloneDX) and `audit.json` (pip-audit's own report) into a folder. A
vulnerability is an error. A package that the advisory database did not answer for is not a safe
one, so it is named and counted: pip-audit itself says "No known vulnerabilities found" also where
it could ask about none.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OWN = "penstock"
LIMIT_S = 900  # a database that answers slowly ends the audit, not the day


@dataclass(frozen=True, slots=True)
class Audit:
    """What is known of the packages of an environment."""

    vulnerable: Sequence[str]  # package, version, advisory and the release that repairs it
    checked: int
    unknown: Sequence[str]  # packages that the database did not answer for

    @classmethod
    def of(cls, report: dict[str, Any]) -> Audit:
        """Read pip-audit's JSON report."""
        found = [one for one in report["dependencies"] if one["name"] != OWN]
        return cls(
            vulnerable=[
                f"{one['name']} {one['version']}: {advisory['id']}, "
                f"repaired in {', '.join(advisory.get('fix_versions') or ()) or 'no release yet'}"
                for one in found
                for advisory in one.get("vulns", ())
            ],
            checked=sum("skip_reason" not in one for one in found),
            unknown=[one["name"] for one in found if "skip_reason" in one],
        )

    @property
    def exit_status(self) -> int:
        return 1 if self.vulnerable else 0

    def lines(self) -> list[str]:
        """Return what a person reads."""
        if not self.checked:
            return [
                "audit: the advisory database could not be reached: no package was checked, so "
                "nothing is known"
            ]
        said = [
            f"audit: {self.checked} packages checked, {len(self.vulnerable)} known vulnerabilities",
            *self.vulnerable,
        ]
        if self.unknown:
            said.append(
                f"audit: the database did not answer for {len(self.unknown)}: "
                f"{', '.join(self.unknown)}"
            )
        return said


def write_bill(environment: Path, project: Path, to: Path) -> int:
    """Write the bill of materials of what a Python interpreter can import; return the number of
    components."""
    command = [
        sys.executable,
        "-m",
        "cyclonedx_py",
        "environment",
        "--pyproject",
        str(project),
        "--output-reproducible",
    ]
    command += ["--output-format", "JSON", "--output-file", str(to), str(environment)]
    subprocess.run(command, check=True, timeout=LIMIT_S)  # noqa: S603 -- our own arguments
    return len(json.loads(to.read_text("utf-8"))["components"])


def ask_for_advisories(environment: Path, to: Path) -> Audit:
    """Have pip-audit ask about each package.

    It leaves no report where the network gave it no answer at all."""
    to.unlink(missing_ok=True)
    find = [str(environment), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(  # noqa: S603
        find, check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--path",
        packages,
        "--progress-spinner",
        "off",
        "--format",
        "json",
    ]
    try:
        done = subprocess.run(  # noqa: S603
            [*command, "--output", str(to)],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        said = done.stderr
    except subprocess.TimeoutExpired:
        said = f"pip-audit did not end within {LIMIT_S} s\n"
    if not to.exists():
        sys.stderr.write(said)
        return Audit((), 0, ())
    return Audit.of(json.loads(to.read_text("utf-8")))


def main(arguments: Sequence[str]) -> int:
    """Take the Python of the environment to look at, and the folder to write into; return the exit
    status."""
    environment, folder = Path(arguments[0]).absolute(), Path(arguments[1])
    folder.mkdir(parents=True, exist_ok=True)
    components = write_bill(environment, Path("pyproject.toml"), folder / "sbom.json")
    print(f"audit: {folder / 'sbom.json'} lists {components} components")  # noqa: T201
    audit = ask_for_advisories(environment, folder / "audit.json")
    print("\n".join(audit.lines()))  # noqa: T201
    return audit.exit_status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
