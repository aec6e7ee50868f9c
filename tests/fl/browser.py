"""A real browser that looks at a page: what sticks out, which labels are cut, what cannot be read.

Pages allow no scripts, so a script beside the page measures it: the page is in frames of several widths, each as wide
as a window would be.
"""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LEAST_CONTRAST = 4.5  # of text and what is behind it, as in WCAG 2
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
PROBE = """
const numbers = text => (text.match(/[-+.\\de]+/g) || []).map(Number);
function rgba(text) {
  const parts = numbers(text.replace(/^color\\(srgb/, ""));
  const scale = text.startsWith("color(") ? 1 : 255;
  return [parts[0] / scale, parts[1] / scale, parts[2] / scale, parts.length > 3 ? parts[3] : 1];
}
const light = ([r, g, b]) => [r, g, b].map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
function behind(view, element) {
  for (let at = element; at; at = at.parentElement) {
    const found = rgba(view.getComputedStyle(at).backgroundColor);
    if (found[3] > 0.99) return found;
  }
  return [1, 1, 1, 1];
}
function contrast(view, element) {
  const style = view.getComputedStyle(element);
  const ink = element instanceof view.SVGElement ? style.fill : style.color;
  const [a, b] = [light(rgba(ink)), light(behind(view, element))];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}
function look(frame) {
  const view = frame.contentWindow, page = frame.contentDocument, wide = page.documentElement.clientWidth;
  const found = {width: wide, scroll: page.documentElement.scrollWidth, outside: [], cut: [], faint: [], labels: 0};
  found.dark = light(rgba(view.getComputedStyle(page.body).backgroundColor)) < 0.2;
  found.told = [...page.querySelectorAll("tr.narrow span")].filter(element => element.getClientRects().length)
    .map(element => [element.clientWidth, parseFloat(view.getComputedStyle(element).fontSize)]);
  found.names = [...page.querySelectorAll("table.compared td.name")].map(element => element.clientWidth);
  found.heads = [...page.querySelectorAll("table.compared th")].map(element => element.getBoundingClientRect().right);
  for (const element of page.body.querySelectorAll("*")) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    const box = element.getBoundingClientRect(), words = element.textContent.trim().slice(0, 60);
    if (!box.width || !box.height || view.getComputedStyle(element).visibility === "hidden") continue;
    if (!element.closest(".scroll, pre") && (box.right > wide + 1 || box.left < -1)) found.outside.push(words);
    if (!own || element.closest("title")) continue;
    if (contrast(view, element) < LEAST) found.faint.push([words, contrast(view, element)]);
    const drawing = element.closest("svg");
    if (drawing) {
      const edge = drawing.getBoundingClientRect();
      found.labels += 1;
      const across = box.left < edge.left - 1 || box.right > edge.right + 1;
      if (across || box.top < edge.top - 1 || box.bottom > edge.bottom + 1) found.cut.push(words);
    } else if (element.matches("th, td, b, span") && element.scrollWidth > element.clientWidth + 1 &&
               view.getComputedStyle(element).overflowX !== "visible") found.cut.push(words);
  }
  return found;
}
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map(look);
  document.getElementById("found").textContent = JSON.stringify(found);
});
"""


def browser(profile: Path, *more: str) -> list[str]:
    """The command of a browser that draws without a screen, and asks nobody anything."""
    assert CHROMIUM is not None
    quiet = ("gpu", "quic", "background-networking", "component-update", "sync")
    return [
        *(CHROMIUM, "--headless", "--no-sandbox", "--no-first-run", "--hide-scrollbars"),
        *(f"--disable-{noise}" for noise in quiet),
        *("--enable-logging=stderr", f"--user-data-dir={profile}", *more),
    ]


def look(page: str, place: Path, widths: tuple[int, ...], *, dark: bool = False) -> list[dict[str, Any]]:
    """What a reader would see at each width, with all details open."""
    shown = POLICY.sub("", page).replace("<details", "<details open")
    frames = [
        f'<iframe width="{w}" height="900" style="border:0" srcdoc="{html.escape(shown)}"></iframe>' for w in widths
    ]
    script = PROBE.replace("LEAST", str(LEAST_CONTRAST))
    beside = place / "beside.html"
    beside.write_text(f"<!doctype html><pre id=found></pre>{''.join(frames)}<script>{script}</script>", "utf-8")
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    command = browser(place / "profile", "--window-size=1400,1000", scheme, "--dump-dom", beside.as_uri())
    tree = subprocess.run(command, capture_output=True, timeout=180, check=True).stdout.decode()
    found: list[dict[str, Any]] = json.loads(
        html.unescape(tree[tree.index('id="found">') + 11 :].partition("</pre>")[0])
    )
    return found
