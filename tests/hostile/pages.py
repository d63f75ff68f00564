"""The live page of a coordinator as a program reads it, and a script that a browser runs on it."""

import json
import urllib.request

SOON = 10.0
MARKUP = "<img src=x onerror=\"document.title='run by a device'\"><script>document.title='run by a device'</script>"
# The lowest contrast of a visible text with its background, and the text.
CONTRAST = """
(() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const linear = (c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const light = (colour) => colour.slice(0, 3).map((c) => linear(c / 255))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const paper = parts(getComputedStyle(node).backgroundColor);
      if (paper.length === 3) return paper;
    }
  };
  const found = [...document.querySelectorAll("body *")].filter((node) => node.checkVisibility()
      && [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim())).map((node) => {
    const style = getComputedStyle(node), ink = parts(node instanceof SVGElement ? style.fill : style.color);
    const [dark, bright] = [light(ink), light(behind(node))].sort((a, b) => a - b);
    return [(bright + 0.05) / (dark + 0.05), node.textContent];
  });
  return found.sort((a, b) => a[0] - b[0])[0];
})()
"""
OPERABLE = ("button", "textbox", "dialog", "region", "image", "log", "progressbar", "DisclosureTriangle")


def page_of(port, path="/now"):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=SOON) as told:
        return told.read().decode()


def now(port):
    """Return what the page shows, or nothing while there is no coordinator."""
    try:
        return json.loads(page_of(port))
    except OSError:
        return {"runs": [{"rounds": [], "state": "", "devices": []}], "log": []}


def port_of(url):
    return int(url.split(":")[2].split("/")[0])
