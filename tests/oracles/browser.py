"""A page looked at in a real browser without a window."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on the PATH: no page is looked at")

FRAME = """<!doctype html><meta charset="utf-8"><body>
<iframe width="{width}" height="800" srcdoc="{page}"></iframe>
<script>
"use strict";
const frame = document.querySelector("iframe"), found = {{}};
frame.addEventListener("load", () => {{
  const inside = frame.contentDocument, view = frame.contentWindow;
  {script}
  const width = inside.documentElement.clientWidth;
  const beyond = element => element.getBoundingClientRect().right > width + 1 && !element.closest(".scroll");
  found.beyond = [...inside.querySelectorAll("main *")].filter(beyond).map(element => element.outerHTML.slice(0, 80));
  found.overflow = inside.documentElement.scrollWidth - width;
  const report = document.createElement("pre");
  report.id = "found";
  report.textContent = JSON.stringify(found);
  document.body.append(report);
}});
</script>"""


def look(page: Path, scratch: Path, width: int, script: str = "") -> dict[str, Any]:
    """What a script puts into `found`, and what sticks out of a page that wide; the console must have no error."""
    text = FRAME.format(width=width, page=html.escape(page.read_text()), script=script)
    (scratch / "frame.html").write_text(text)
    done = subprocess.run(
        [
            str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--enable-logging=stderr", f"--user-data-dir={scratch / 'profile'}", "--virtual-time-budget=4000",
            "--dump-dom", (scratch / "frame.html").as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr
    (said,) = re.findall(r'<pre id="found">(.*?)</pre>', done.stdout)
    return json.loads(html.unescape(said))
