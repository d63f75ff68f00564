"""Tests that each room imports only from the rooms that its `__init__.py` names.

If a test fails, change that text and not the imports, and give the reason.
"""

import ast
import functools
import re
import subprocess

import pytest

from tests.rooms import PACKAGES, ROOT, Tree

DOORS = 17  # The largest number of modules of a room that a reader can still survey at once.
FORBIDDEN = {
    "protocol": {"torch", "torchvision"},
    "runtime": {"torch", "torchvision", "paho"},
    "methods": {"paho", "prometheus_client", "socket", "threading", "time", "random"},
    "coordinator": {"paho", "socket"},
    "edge_client": {"paho"},
}
EXEMPT = {("methods/nets/base.py", "threading")}  # Only a lock around torch's one generator.
# These calls write a few bytes, into a pipe or into a file that is locked. A part of so few bytes is never written.
SHORT_TEXTS = {
    ("os.pwrite", "edge_client/gpu/turns.py"), ("os.pwrite", "edge_client/trainer/slots.py"),
    ("os.write", "lab/local/trial_load.py"),
}  # fmt: skip
# These calls may use plain JSON. The checksums in rounds_file.py and index.py need the same text as when the row was
# written; spool.py writes only names and whole numbers, which are never NaN or Infinity.
PLAIN = {
    ("rounds_file.py", "json.dumps(table)"),
    ("index.py", "json.dumps([table, *plain])"),
    *(("spool.py", f"json.dumps({names})") for names in ("list(cohort)", "rows", "devices")),
}

# Code that is shared by all methods, and the methods that it may name: FedAvg, with which all others are compared,
# networks that papers define, and the methods of two checks for authors.
SHARED = (
    "protocol", "runtime", "coordinator", "edge_client", "lab",
    *(f"methods/{room}" for room in ("contract", "maths", "nets", "parts", "plugins", "served")),
)  # fmt: skip
NAMED = {
    *(("methods/nets/catalog.py", name) for name in ("fedlsa", "fednh", "fedsa")),
    ("lab/contract/checks.py", "fedproto"), ("lab/contract/worlds.py", "fedpall"),
}  # fmt: skip


def sources(package):
    return sorted((ROOT / package).rglob("*.py"))


@functools.cache
def imports(path):
    """Return what a file imports; each file is parsed once for all tests of a process."""
    return frozenset(imports_in(ast.parse(path.read_text())))


def imports_in(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (top(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "protofleet":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield top(node.module)


def top(name):
    return name.removeprefix("protofleet.").split(".")[0]


TREE = Tree(ROOT)
FILES, ROOMS, room_of = TREE.files, TREE.rooms, TREE.room_of


def may_import(room):
    """Return the rooms that the text of this room allows it to import."""
    words = " ".join(ast.get_docstring(ast.parse(FILES[room].read_text())).split())
    return re.search(r"May import: (.+)\.$", words)[1].split(", ")


def fits(room, said):
    """Return whether a room matches an entry of "May import": `x.*` matches x and every room below it."""
    room, name = room.removeprefix("protofleet."), said.removesuffix(".*")
    return room == name or said.endswith(".*") and room.startswith(f"{name}.")


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_states_its_purpose_and_imports_only_the_rooms_that_it_names(room):
    tree = ast.parse(FILES[room].read_text())
    assert len(tree.body) == 1, (
        f"{FILES[room]} has code besides its docstring, and every import of its modules would run it"
    )
    allowed = may_import(room)
    known = {"nothing of ours", *(name.removeprefix("protofleet.") for name in ROOMS)}
    assert {said.removesuffix(".*") for said in allowed} <= known
    for name in TREE.modules(room):
        others = {room_of(other) for other in TREE.graph[name] if other not in ROOMS}
        for other in others - {room, "protofleet", ""}:
            assert any(fits(other, said) for said in allowed), f"{FILES[name]} imports {other}"


def test_no_files_import_each_other_in_a_circle():
    """It also holds for imports that are only for types, and for imports through a package."""
    assert TREE.circles() == []


@pytest.mark.parametrize("first", ["from protofleet.runtime import b", "import protofleet.runtime.b"])
@pytest.mark.parametrize(
    "second", ["from protofleet.runtime.a import x", "if TYPE_CHECKING:\n    import protofleet.runtime.a"]
)
def test_a_circle_of_imports_is_found_in_each_form_of_import(tmp_path, first, second):
    room = tmp_path / "runtime"
    room.mkdir()
    for name, text in {"__init__": "", "a": first, "b": second, "c": "import protofleet.runtime.a"}.items():
        (room / f"{name}.py").write_text(text)
    assert Tree(tmp_path).circles() == [["protofleet.runtime.a", "protofleet.runtime.b"]]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_no_library_that_is_forbidden_to_it(package):
    for path in sources(package) if package in FORBIDDEN else ():
        for name in imports(path) & FORBIDDEN[package]:
            assert (str(path.relative_to(ROOT)), name) in EXEMPT, f"{path} imports {name}"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_imports_the_tools_of_the_checkout(package):
    for path in sources(package):
        if "tools" in path.read_text():
            assert "tools" not in imports(path), f"{path} imports tools, which only a checkout has"


def test_only_the_transport_imports_paho():
    knows = [
        str(p.relative_to(ROOT))
        for package in PACKAGES
        for p in sources(package)
        if "paho" in p.read_text() and "paho" in imports(p)
    ]
    assert knows == ["protocol/transport/mqtt.py", "protocol/transport/stream.py"]


def test_only_one_file_calls_os_write_and_os_pwrite():
    """A full disk takes a part of a block, and os.pwrite raises no error; `write_at` and `write_whole` continue."""
    calls = {
        (call, str(path.relative_to(ROOT)))
        for package in PACKAGES
        for path in sources(package)
        for call in re.findall(r"\bos\.p?writev?\b(?=\()", path.read_text())
    }
    ours = {(call, "protocol/storage/disk.py") for call in ("os.write", "os.pwrite")}
    assert ours <= calls and calls - ours == SHORT_TEXTS


@pytest.mark.parametrize("package", PACKAGES)
def test_no_file_is_named_utils_helpers_or_common(package):
    for path in sources(package):
        assert path.name not in ("utils.py", "helpers.py", "common.py"), (
            f"{path} has a name without a meaning"
        )


def words_of_code(path):
    """Yield the names and the whole strings in the code of a file; comments and docstrings may name methods."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant):
            yield node.value
        elif isinstance(node, ast.Name | ast.Attribute):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
            yield (node.module or "").rpartition(".")[2]


@pytest.mark.parametrize("package", SHARED)
def test_code_that_all_methods_share_names_no_method(package):
    methods = {path.stem for path in (ROOT / "methods").glob("*.py")} - {"__init__", "fedavg"}
    assert {"fedncm", "fedgram", "tinyproto", "scaffold", "feddap"} < methods
    word = re.compile(rf"\b({'|'.join(methods)})\b")
    paths = [path for path in sources(package) if word.search(path.read_text())]
    found = {
        (str(path.relative_to(ROOT)), name) for path in paths for name in methods & {*words_of_code(path)}
    }
    assert found <= NAMED


def test_no_two_classes_have_the_same_name():
    """Method files are excluded: all have the same class names, and each file is named after its method."""
    found: dict[str, list[str]] = {}
    for name in FILES:
        for node in (
            ast.walk(ast.parse(FILES[name].read_text())) if room_of(name) != "protofleet.methods" else ()
        ):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(name)
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


def test_a_coordinator_writes_no_nan_and_no_infinity_into_json():
    """Python would write Infinity and NaN, which other programs cannot read. Devices can send these values."""
    for path in sources("coordinator"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "dump" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.dumps", "json.dump"):
                strict = any(ast.unparse(word) == "allow_nan=False" for word in node.keywords)
                assert strict or (path.name, ast.unparse(node)) in PLAIN, f"{path}: {ast.unparse(node)}"


def test_the_repository_holds_no_large_files():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert all((ROOT / name).stat().st_size <= 1 << 20 for name in listed if (ROOT / name).exists())


PICTURE = re.search(
    r"^```text rooms\n(.*?)^```", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE | re.DOTALL
)[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
TOPS = "|".join((*PACKAGES, "benchmarks", "docs", "experiments", "tests", "tools"))


def drawn():
    """Return the rooms in the picture of docs/architecture.md, each with the number of its layer, from the top."""
    layer, found = 0, {}
    for line in PICTURE.splitlines():
        layer += "───" in line
        if match := re.search(r"(\w+):((?: [\w/]+)+)$", line):
            package, inner = match[1], match[2].split()
            found |= {f"protofleet.{package}": layer}
            found |= {f"protofleet.{package}.{name.replace('/', '.')}": layer for name in inner}
        elif match := re.search(r" (\w+)$", line):
            found[f"protofleet.{match[1]}"] = layer
    return found


def test_the_picture_of_the_rooms_has_exactly_the_rooms_of_the_tree():
    assert drawn().keys() == set(ROOMS), "see docs/architecture.md"


def test_no_room_imports_a_room_that_is_drawn_above_it():
    layers = drawn()
    for name in FILES:
        for other in TREE.graph[name] if room_of(name) in layers else ():
            if room_of(other) in layers:
                assert layers[room_of(name)] <= layers[room_of(other)], f"{name} imports {other}"


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_each_file_and_module_that_a_page_names_exists(page):
    """Pages name files by paths in the repository or in tests/, and modules and their contents by full names."""
    text = page.read_text()
    paths = re.findall(rf"`((?:{TOPS})/[\w./-]+\.(?:py|sh|md|toml|txt|yml|json|npz|conf))\b", text)
    assert [name for name in paths if not any((at / name).exists() for at in (ROOT, ROOT / "tests"))] == []
    names = re.findall(rf"\bprotofleet\.(?:{TOPS})\.[\w.]*\w", text)
    assert [name for name in names if not is_there(name)] == []


def is_there(name):
    """Return whether a name is a module, a room, or a name that occurs in a module."""
    module, inner = name, []
    while module not in FILES and module:
        module, _, last = module.rpartition(".")
        inner.append(last)
    words = set(re.findall(r"\w+", FILES[module].read_text())) if inner and module else set()
    return module not in ("", "protofleet") and words >= set(inner)


def test_each_make_target_that_a_page_names_exists():
    targets = re.findall(r"^([a-z][a-z-]*(?: [a-z-]+)*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    known = {name for line in targets for name in line.split()}
    for page in PAGES:
        shell = "".join(re.findall(r"^```sh.*?^```", page.read_text(), re.MULTILINE | re.DOTALL))
        said = re.findall(r"^make ([a-z][a-z-]*)", shell, re.MULTILINE)
        for name in said + re.findall(r"`make ([a-z][a-z-]*)", page.read_text()):
            assert name in known, f"{page.name} names the target {name}, which does not exist"


def test_only_two_files_open_pictures_and_both_name_the_formats():
    """Earlier four files opened pictures, and each guessed the format: PostScript named as a PNG ran Ghostscript."""
    opens = {
        str(path.relative_to(ROOT)): path.read_text()
        for package in PACKAGES
        for path in sources(package)
        if "Image.open" in path.read_text()
    }
    assert set(opens) == {"edge_client/data/images/picture.py", "lab/export/program.py"}
    assert all(len(re.findall(r"Image\.open\(.*, formats=", text)) == 1 for text in opens.values())
