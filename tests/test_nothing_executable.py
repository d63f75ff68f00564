"""Tests that no data that we read can run as code: no pickle in any form, no eval, no shell with a built string."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "protofleet",
    "experiments",
    "protocol",
    "runtime",
    "methods",
    "edge_client",
    "coordinator",
    "federation",
    "lab",
    "deploy",
    "tools",
    "benchmarks",
    "tests",
)
MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml", "code",
           "codeop", "pty", "jsonpickle", "hickle"}  # fmt: skip
CALLS = {"eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec", "torch.jit.load",
         "torch.hub.load",
         "pandas.read_pickle", "runpy.run_path", "runpy.run_module", "logging.config.listen",
         "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}  # fmt: skip
ONLY_HERE = {
    # CIFAR's own files are pickles. Its reader makes only arrays, lists, dicts, numbers and strings from them.
    "edge_client/data/sources/cifar.py": {"imports pickle"},
    "edge_client/data/errors.py": {"imports pickle"},  # Only for the name of the error class.
    "tests/edge_client/data/sources/test_on_disk_formats.py": {"imports pickle"},  # Writes such files.
    "tests/edge_client/data/sources/test_readers.py": {"imports pickle"},  # Writes them too.
    "tests/chaos/seclusion.py": {"os.execvp"},  # Starts itself again, in new namespaces.
    "tests/coordinator/round/test_mutants.py": {"exec", "compile"},  # Changes the round machine on purpose.
    "tests/engines/chart/check.py": {"imports yaml"},  # Reads what Helm has rendered, with the safe loader.
    "tests/simulator/planted.py": {"exec", "compile"},  # Plants faults in machine, link and spool.
    "runtime/launcher_process.py": {"runpy.run_module"},  # Runs a module that the parent process names.
    # Runs a plug-in whose hash the owner of this party allows; it runs exactly the bytes that were hashed.
    "methods/plugins/file.py": {"exec", "compile"},
    "protofleet/cli/main.py": {"exec"},  # Runs an empty text, because Python keeps data of the last one.
    "tests/lab/export/test_predict_program.py": {"runpy.run_path"},  # Runs an exported program.
    "tests/support/source.py": {"exec"},  # Runs a program that is written in the test that starts it.
    "tests/support/forks.py": {"exec"},  # Runs a program that is written in the test that starts it.
}


def faults(text):
    """Yield the names of what a source file does that could run the data that it reads."""
    tree = ast.parse(text)
    names = dict(aliases(tree))
    for node in ast.walk(tree):
        yield from imported(node)
        if isinstance(node, ast.Call):
            yield from called(node, full_name(node.func, names))


def aliases(tree):
    """Yield (local name, full name), so that `import os as o` and `from os import system` hide nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((a.asname or a.name.split(".")[0], a.name if a.asname else a.name.split(".")[0])
                        for a in node.names)  # fmt: skip
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((a.asname or a.name, f"{node.module}.{a.name}") for a in node.names)


def full_name(function, names):
    first, dot, rest = written(function).partition(".")
    name = names.get(first, first) + dot + rest
    return name.replace("np.", "numpy.", 1) if name.startswith("np.") else name


def written(function):
    """Return the text of a called function; ast.unparse takes ten times as long for a name with dots."""
    parts, node = [], function
    while isinstance(node, ast.Attribute):
        parts, node = [node.attr, *parts], node.value
    return ".".join([node.id, *parts]) if isinstance(node, ast.Name) else ast.unparse(function)


def imported(node):
    if isinstance(node, ast.Import):
        found = [alias.name for alias in node.names]
    else:
        found = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
    yield from (f"imports {name}" for name in found if name.split(".")[0] in MODULES)


def called(call, name):
    given = {k.arg: k.value for k in call.keywords}
    if name.startswith(("pickle.load", "pickle._load", "pickle.Unpickler")):
        yield name
    if name in CALLS or name.startswith(("os.exec", "os.spawn")):
        yield name.removeprefix("builtins.")
    if name == "torch.load" and not is_constant(given.get("weights_only"), True):
        yield "torch.load without weights_only=True"
    if "allow_pickle" in given and not is_constant(given["allow_pickle"], False):
        yield "allow_pickle"
    if "shell" in given and not is_constant(given["shell"], False):
        yield "shell=True"
    if name.startswith("subprocess.") and call.args:
        yield from commanded(call.args[0])


def commanded(command):
    """Yield the faults of a command: it must be a list, and the script after `-c` must be a constant or a name."""
    if isinstance(command, (ast.JoinedStr, ast.BinOp)) or is_text(command):
        yield "a command that is a string"
    for part in ast.walk(command):
        if isinstance(part, (ast.List, ast.Tuple)):
            for flag, script in zip(part.elts, part.elts[1:]):
                if is_constant(flag, "-c") and not isinstance(script, (ast.Constant, ast.Name)):
                    yield "a script that is put together"


def is_constant(node, value):
    return isinstance(node, ast.Constant) and node.value is value or is_text(node) and node.value == value


def is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_source_file_can_run_the_data_that_it_reads(package):
    for path in sorted((ROOT / package).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        found = set(faults(path.read_text())) - ONLY_HERE.get(name, set())
        assert not found, f"{name}: {', '.join(sorted(found))}"


# In these files the user of this machine names the file to run, in an experiment or as an argument of a command.
NAMED_BY_THEIR_USER = {"lab/api/simulated.py", "lab/local/own_plugins.py"}


def test_a_plug_in_runs_without_an_allowed_hash_only_if_the_local_user_names_it():
    found = set()
    for package in PACKAGES[:-3]:
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text()
            for node in ast.walk(ast.parse(text)) if "from_file" in text else ():
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("from_file"):
                    given = [*node.args[1:], *(k.value for k in node.keywords if k.arg == "allowed")]
                    found |= {path.relative_to(ROOT).as_posix()} if is_constant(given[0], None) else set()
    assert found == NAMED_BY_THEIR_USER


PLANTED = [
    "import pickle", "from pickle import loads", "import dill as d", "import shelve", "from marshal import loads",
    "import yaml\nyaml.load(text)", "import cloudpickle", "from joblib import load",
    "import pickle\npickle.loads(text)", "import pickle\npickle.Unpickler(file).load()",
    "eval(text)", "exec(text)", "compile(text, 'x', 'exec')", "import builtins as b\nb.eval(text)",
    "import torch\ntorch.load(path)", "import torch\ntorch.load(path, weights_only=False)",
    "import torch\ntorch.load(path, weights_only=flag)", "from torch import load\nload(path)",
    "from torch import load as take\ntake(path)", "import torch as t\nt.load(path)", "torch.jit.load(path)",
    "import numpy as np\nnp.load(path, allow_pickle=True)", "np.load(path, allow_pickle=flag)",
    "import os\nos.system(text)", "import os as o\no.system(text)", "from os import system\nsystem(text)",
    "import os\nos.popen(text)", "os.execvp(name, words)",
    "import subprocess\nsubprocess.run(text, shell=True)", "subprocess.Popen(words, shell=flag)",
    "import subprocess\nsubprocess.run(f'ls {path}')", "subprocess.run('ls ' + path)", "subprocess.run('ls')",
    "subprocess.getoutput(text)", "import subprocess\nsubprocess.run(['sh', '-c', f'ls {path}'])",
    "subprocess.run(('sh', '-c', 'ls ' + path))", "from subprocess import run\nrun(['bash', '-c', 'ls %s' % path])",
    "from subprocess import run as do\ndo('ls {}'.format(path), shell=True)",
]  # fmt: skip
HARMLESS = [
    "import torch\ntorch.load(path, weights_only=True)", "np.load(path, allow_pickle=False)", "np.load(path)",
    "subprocess.run(['ls', path])", "subprocess.run([*command, path], shell=False)", "model.eval()",
    "subprocess.run(['sh', '-c', GUARD, 'sh'])", "re.compile(text)", "self.load(path)",
    "import json\njson.loads(text)",
]  # fmt: skip


@pytest.mark.parametrize("source", PLANTED)
def test_each_form_of_dangerous_code_is_found(source):
    assert list(faults(source))


@pytest.mark.parametrize("source", HARMLESS)
def test_harmless_code_is_not_reported(source):
    assert list(faults(source)) == []
