"""The live page of a coordinator, as a program reads it."""

import json
import urllib.request

SOON = 10.0


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
