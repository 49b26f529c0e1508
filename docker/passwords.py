"""Put random passwords into .env, where the example's are.

Run it as `python3 docker/passwords.py`. Makes .env from .env.example where there is none. What was
chosen already stays. Needs Python 3 and nothing else.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

PLACEHOLDER = "CHANGE_ME"
# 48 letters and digits: they travel in URLs, where other characters would have to be encoded
BYTES = 24


def filled(text: str) -> str:
    """``text`` with another random password in the place of each placeholder."""
    first, *rest = text.split(PLACEHOLDER)
    return first + "".join(secrets.token_hex(BYTES) + part for part in rest)


def main(folder: Path) -> int:
    env = folder / ".env"
    text = env.read_text() if env.exists() else (folder / ".env.example").read_text()
    env.touch(mode=0o600)
    env.chmod(0o600)
    env.write_text(filled(text))
    sys.stdout.write(f"{env}: {text.count(PLACEHOLDER)} passwords written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parents[1]))
