"""Tests that an error in the middle of a run shows its author the file, the line and the code of that line."""

import queue
import sys

import pytest

from protofleet.cli.main import perform
from protofleet.methods.contract.base import Ask, ServerHalf
from protofleet.methods.contract.given import first_ask, round_of, tensors_of
from protofleet.methods.plugins.authors import AuthorError
from protofleet.methods.plugins.file import from_file
from protofleet.methods.plugins.packages import installed
from protofleet.protocol.storage.store import DamagedError
from protofleet.runtime.event_loop import EndedWorkError, ThreadWorker
from protofleet.runtime.faults import as_authors
from protofleet.runtime.logs import place_of
from tests.support.plug_ins import installed_package

TEXT = """from protofleet.methods.contract.bridge import to_numpy
import sys
def calls(what):
    what()  # a line of the plug-in
def deep():
    to_numpy({"x": 5})
def leaves():
    sys.exit(0)
def opens():
    open("/nowhere/at/all")
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "fedexp.py"
    path.write_text(TEXT)
    return from_file(path, None)[1]


def raised(call):
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - SystemExit too
        return error
    raise AssertionError("the call raised no error")


def does(error):
    raise error


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        ("deep", 6, """AttributeError: 'int' object has no attribute 'detach', in deep: to_numpy({"x": 5})"""),
        ("leaves", 8, "SystemExit: 0 (a plug-in ends no process; let it raise an error that says why), in leaves: "
         "sys.exit(0)"),
        ("opens", 10, "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/at/all', in opens: "
         'open("/nowhere/at/all")'),
    ],
)  # fmt: skip
def test_an_error_names_the_deepest_line_of_the_plug_in_with_its_code(own, name, line, words):
    found = as_authors(raised(getattr(own, name)))
    assert str(found) == f"{own.__file__}:{line}: {words}"


def test_an_error_shows_the_line_that_ran_even_if_the_file_has_changed_since(own, tmp_path):
    (tmp_path / "fedexp.py").write_text("# nothing\n" * 20)
    error = raised(own.deep)
    assert 'to_numpy({"x": 5})' in str(as_authors(error))
    assert place_of(error.__traceback__) == f' in {own.__file__}:6 (deep: to_numpy({{"x": 5}}))'


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("CUDA out of memory"), OSError(28, "No space left"), DamagedError("x")],
)
def test_an_error_of_the_machine_is_not_attributed_to_the_author_of_the_plug_in(own, error):
    assert as_authors(raised(lambda: own.calls(lambda: does(error)))) is None


def test_an_error_without_a_line_of_a_plug_in_is_not_attributed_to_an_author():
    assert as_authors(raised(lambda: does(ValueError("x")))) is None


def test_an_error_names_the_line_of_a_plug_in_of_an_installed_package(tmp_path, monkeypatch):
    installed_package(
        tmp_path, "nova-parts", {"parts_of_nova.py": TEXT}, {"methods": "n = parts_of_nova:deep"}
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    deep = installed("method")["n"].load()
    try:
        assert str(as_authors(raised(deep))).startswith(f"{tmp_path}/parts_of_nova.py:6: AttributeError")
    finally:
        del sys.modules["parts_of_nova"]


def result_of(work):
    """Return the result of work as the thread of its owner receives it; assert that the worker thread still runs."""
    inbox, results = queue.SimpleQueue(), []
    worker = ThreadWorker(inbox)
    for one in (work, lambda: "goes on"):
        worker.submit(one, results.append)
    for _ in range(2):
        inbox.get(timeout=10).call()
    assert results[1] == "goes on"
    return results[0]


def test_a_worker_survives_a_plug_in_that_raises_system_exit_and_reports_it(own, caplog):
    found = result_of(own.leaves)
    assert isinstance(found, AuthorError) and f"{own.__file__}:8: SystemExit: 0" in str(found)
    assert "Traceback" in caplog.text, "the log must contain the traceback for the author"


def test_a_worker_survives_any_work_that_raises_system_exit():
    found = result_of(lambda: does(SystemExit(3)))
    assert isinstance(found, EndedWorkError) and str(found) == "the work was ended by SystemExit: 3"


def test_a_command_fails_if_a_plug_in_raises_system_exit(own):
    options = type("Options", (), {"command": lambda self, options: own.leaves()})()
    with pytest.raises(AuthorError, match="fedexp.py:8: SystemExit: 0"):
        perform(options)
    options.command = lambda given: does(SystemExit(7))
    with pytest.raises(SystemExit, match="7"):
        perform(options)


class Half(ServerHalf):
    """A server half whose `round` returns the value with which the half was made."""

    def __init__(self, given):
        self.given = given

    def round(self):
        return self.given

    payload = state = restore = lambda self, *given: {}


def silent():
    return
    yield


def word():
    yield "train"


def numbers():
    yield Ask("train", {"x": 5})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, r"round() must yield Ask(...), at least once; it gives NoneType"),
        (silent(), r"round() must yield Ask(...), at least once; it ended without an Ask"),
        (word(), r"round() must yield Ask(...); it gives str"),
        (numbers(), """round() must yield Ask(phase, payload) whose payload is {"name": tensor, ...}; 'x' is int"""),
    ],
)  # fmt: skip
def test_a_round_that_yields_no_ask_is_refused_with_the_line_of_its_def(given, words):
    half = Half(given)
    with pytest.raises(AuthorError) as error:
        first_ask(half, round_of(half))
    line = Half.round.__code__.co_firstlineno
    assert str(error.value) == f"{__file__}:{line}: {words}"


def test_a_payload_that_is_no_table_of_tensors_is_refused_with_the_function():
    with pytest.raises(AuthorError, match=r'round\(\) must give {"name": tensor, ...}; it gives NoneType'):
        tensors_of(None, Half.round)
    with pytest.raises(AuthorError, match="; 3 is str"):
        tensors_of({3: "x"}, Half.round)
