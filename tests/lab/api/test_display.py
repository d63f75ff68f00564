"""A notebook shows the address of a live page as a link under the cell that has started the run."""

import sys
from types import SimpleNamespace

from protofleet.lab.api.display import display_for

ADDRESS = "http://127.0.0.1:8470/#c=secret"


def test_a_notebook_shows_a_link_to_the_page_and_other_programs_print_its_address(monkeypatch, capsys):
    shown = []

    def display(data, **options):
        shown.append((data, options))

    python = SimpleNamespace(
        get_ipython=lambda: SimpleNamespace(kernel=1), display=SimpleNamespace(display=display)
    )
    monkeypatch.setitem(sys.modules, "IPython", python)
    display_for("off", 3, "global").show_page(ADDRESS)
    ((data, options),) = shown
    assert data == {
        "text/plain": ADDRESS,
        "text/html": f'<a href="{ADDRESS}" target="_blank">live page</a>',
    }
    assert options == {"raw": True} and capsys.readouterr() == ("", "")
    monkeypatch.delitem(sys.modules, "IPython")
    display_for("off", 3, "global").show_page(ADDRESS)
    assert capsys.readouterr() == ("", f"page {ADDRESS}\n")
