"""Take the picture that shared links of the site show, docs/images/card.png:
`python -m tools.pictures.card`. Needs Chromium, and no network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PICTURE: Final = ROOT / "docs/images/card.png"
WIDTH, HEIGHT = 1200, 630  # what readers of cards ask for
LARGEST: Final = 100_000  # bytes of the picture

CARD: Final = """<!doctype html><meta charset="utf-8"><style>
  * { box-sizing: border-box; margin: 0 }
  body { width: 1200px; height: 630px; padding: 72px 80px; background: #00504a; color: #fff;
    font-family: "DejaVu Sans", sans-serif; position: relative; overflow: hidden }
  h1 { font-size: 104px; letter-spacing: -3px; line-height: 1 }
  p { font-size: 38px; line-height: 1.35; margin-top: 36px; max-width: 980px; color: #d5efec }
  b { color: #fff }
  footer { position: absolute; left: 80px; bottom: 64px; font-size: 27px; color: #9fd8d1 }
  svg { position: absolute; right: 0; bottom: 0 }
</style><body>
<h1>Penstock</h1>
<p>LLM batch inference on queue workers: a million documents in the evening,
<b>one visible outcome for each</b> in the morning.</p>
<footer>Python · Celery · Redis · provider APIs, Batch APIs, vLLM</footer>
"""


def main() -> None:
    sys.path.insert(0, str(ROOT / "tests/harness"))
    from dashboard_ledger import chromium

    with chromium() as browser:
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_content(CARD + squares())
        page.screenshot(path=str(PICTURE))
    size = PICTURE.stat().st_size
    print(f"{PICTURE.relative_to(ROOT)}: {size:,} bytes")  # noqa: T201  # what the program is for
    assert size < LARGEST, f"{PICTURE} has more than {LARGEST:,} bytes"


def squares() -> str:
    """Draw the documents of a job as rows of squares, all done but one."""
    drawn = [
        f'<rect x="{26 * column}" y="{26 * row}" width="18" height="18" rx="4" fill="'
        + ("#ffb74d" if (column, row) == (7, 2) else "#2a9d8f")
        + f'" opacity="{0.25 + 0.07 * column:.2f}"/>'
        for row in range(5)
        for column in range(11)
    ]
    return f'<svg width="340" height="190">{"".join(drawn)}</svg>'


if __name__ == "__main__":
    main()
