"""Who may import whom. Change ALLOWED, not the imports, and say why in the commit."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "protocol": {"protocol"},
    "methods": {"methods", "protocol"},
    "edge_client": {"edge_client", "methods", "protocol"},
    "coordinator": {"coordinator", "methods", "protocol"},
    "deploy": {"deploy", "edge_client", "coordinator", "methods", "protocol"},
}
FORBIDDEN = {
    "protocol": {"torch", "torchvision"},
    "methods": {"paho", "prometheus_client", "socket", "threading", "time", "random"},
    "coordinator": {"paho", "socket"},
    "edge_client": {"paho"},
}
EXEMPT = {("methods/nets/base.py", "threading")}  # a lock around torch's one generator, and nothing else
# What was written before is compared as it was written; names and whole numbers are always some.
PLAIN = {
    ("lines.py", "json.dumps(table)"),
    ("index.py", "json.dumps([table, *plain])"),
    *(("spool.py", f"json.dumps({names})") for names in ("list(cohort)", "guests", "devices")),
}


def sources(package):
    return sorted((ROOT / package).rglob("*.py"))


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (top(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "protofleet":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield top(node.module)


def top(name):
    return name.removeprefix("protofleet.").split(".")[0]


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_point_inwards(package):
    for path in sources(package):
        for name in imports(path):
            assert name not in ALLOWED or name in ALLOWED[package], f"{path} imports {name}"
            if (str(path.relative_to(ROOT)), name) not in EXEMPT:
                assert name not in FORBIDDEN.get(package, ()), f"{path} imports {name}"


def test_only_the_transport_knows_paho():
    knows = [
        str(p.relative_to(ROOT)) for package in ALLOWED for p in sources(package) if "paho" in set(imports(p))
    ]
    assert knows == ["protocol/mqtt.py"]


@pytest.mark.parametrize("package", ALLOWED)
def test_every_file_has_a_name_of_its_own(package):
    for path in sources(package):
        assert path.name not in ("utils.py", "helpers.py", "common.py"), f"{path} has no owner"


def test_a_coordinator_writes_no_json_with_numbers_that_are_none():
    """Python would write Infinity and NaN, which no other program reads, and devices can say them."""
    for path in sources("coordinator"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.dumps", "json.dump"):
                strict = any(ast.unparse(word) == "allow_nan=False" for word in node.keywords)
                assert strict or (path.name, ast.unparse(node)) in PLAIN, f"{path}: {ast.unparse(node)}"


def test_the_repository_holds_no_large_files():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert all((ROOT / name).stat().st_size <= 1 << 20 for name in listed if (ROOT / name).exists())
