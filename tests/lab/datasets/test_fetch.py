"""Public data sets over a real HTTP server arrive whole or not at all, and no byte is fetched a second time."""

import gzip
import hashlib
import io
import itertools
import os
import re
import socket
import subprocess
import sys
import tarfile

import pytest

from protofleet.cli.main import main
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import load_shard
from protofleet.lab.datasets.catalog import SETS, named
from protofleet.lab.datasets.download import Downloader, own_file
from protofleet.lab.datasets.fetch import fetch
from protofleet.lab.datasets.torchvision_lists import Published, RemoteFile, mirrored
from protofleet.methods.nets.torchvision_import import import_torchvision
from protofleet.runtime.command.errors import RunError, StoppedError
from tests.edge_client.data.files import write_mnist
from tests.lab.datasets.publisher import publishing
from tests.rooms import ROOT

CONTENT = bytes(range(256)) * 4000  # a megabyte


def md5(content):
    return hashlib.md5(content).hexdigest()


def remote(publisher, name="data.bin", content=CONTENT, *mirrors):
    return RemoteFile(name, (*mirrors, publisher.address + name), md5(content))


class Said(list):
    """A list of the messages of a downloader; `waited` has the seconds that it would have waited."""

    def __init__(self):
        super().__init__()
        self.waited = []
        self.downloader = Downloader(self.append, self.waited.append)


@pytest.fixture
def said():
    return Said()


@pytest.fixture
def publisher():
    with publishing(data__bin=CONTENT) as found:
        yield found


def test_a_complete_file_is_not_fetched_again(publisher, said, tmp_path):
    for _ in range(2):
        assert said.downloader.fetch(remote(publisher), tmp_path).read_bytes() == CONTENT
    assert publisher.asked == [("/data.bin", "")]
    assert said[-1] == "data.bin: 1.0 MB are there already"
    assert [path.name for path in tmp_path.iterdir()] == ["data.bin"]


def test_the_progress_of_a_long_download_is_shown(publisher, tmp_path):
    lines, times = [], itertools.count(step=2.0)
    Downloader(lines.append, clock=lambda: next(times)).fetch(remote(publisher), tmp_path)
    assert re.fullmatch(r"\d+\.\d kB of 1.0 MB", lines[1]) and len(lines) > 3


def test_a_download_continues_at_the_byte_where_its_connection_broke(publisher, said, tmp_path):
    publisher.breaks = [300_000, 200_000]
    assert said.downloader.fetch(remote(publisher), tmp_path).read_bytes() == CONTENT
    assert [wanted for _, wanted in publisher.asked] == ["", "bytes=300000-", "bytes=500000-"]
    assert publisher.sent == len(CONTENT)
    assert any("the connection ended too early; 300.0 kB are there, trying again" in line for line in said)


def test_a_command_continues_the_partial_file_of_an_earlier_command(publisher, said, tmp_path):
    publisher.breaks = [400_000, 0, 0, 0, 0]
    with pytest.raises(
        RunError, match=r"400.0 kB of it are kept in .*data.bin.part, and the same command continues"
    ):
        said.downloader.fetch(remote(publisher), tmp_path)
    assert not (tmp_path / "data.bin").exists(), "no reader may use the partial file as the whole file"
    publisher.breaks, before = [], publisher.sent
    assert said.downloader.fetch(remote(publisher), tmp_path).read_bytes() == CONTENT
    assert publisher.sent - before == len(CONTENT) - 400_000
    assert said.waited == [1.0, 2.0, 4.0]


def test_a_server_without_ranges_sends_the_whole_file_again(publisher, said, tmp_path):
    publisher.ranges, publisher.breaks = False, [300_000]
    assert said.downloader.fetch(remote(publisher), tmp_path).read_bytes() == CONTENT
    assert publisher.sent == len(CONTENT) + 300_000


def test_a_response_without_a_length_is_read_to_its_end(publisher, said, tmp_path):
    publisher.lengths = False
    assert said.downloader.fetch(remote(publisher), tmp_path).read_bytes() == CONTENT


def test_a_partial_file_that_is_complete_is_not_downloaded_again(publisher, said, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(CONTENT)
    assert said.downloader.fetch(remote(publisher), tmp_path).read_bytes() == CONTENT
    assert publisher.sent == 0


def test_a_file_with_a_wrong_checksum_is_refused_and_deleted(publisher, said, tmp_path):
    publisher.files["/data.bin"] = CONTENT[:-1] + b"?"
    with pytest.raises(
        RunError, match=f"not {md5(CONTENT)}: the server has another file, or .*; the file is deleted"
    ):
        said.downloader.fetch(remote(publisher), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_partial_file_with_wrong_bytes_is_deleted_and_the_next_command_starts_again(
    publisher, said, tmp_path
):
    (tmp_path / "data.bin.part").write_bytes(b"x" * 1000)
    with pytest.raises(RunError, match="the file is deleted"):
        said.downloader.fetch(remote(publisher), tmp_path)
    assert said.downloader.fetch(remote(publisher), tmp_path).read_bytes() == CONTENT


def test_the_next_mirror_is_used_if_a_mirror_has_no_file_or_a_wrong_file(publisher, said, tmp_path):
    publisher.files["/old/data.bin"] = b"<html>moved</html>"
    mirrors = (publisher.address + "gone/data.bin", publisher.address + "old/data.bin")
    file = remote(publisher, "data.bin", CONTENT, *mirrors)
    assert said.downloader.fetch(file, tmp_path).read_bytes() == CONTENT


def test_a_file_that_no_server_has_is_requested_only_once(publisher, said, tmp_path):
    with pytest.raises(
        RunError, match=r"gone.bin cannot be fetched .*the server says 404 Not Found.*docs/data.md"
    ):
        said.downloader.fetch(remote(publisher, "gone.bin"), tmp_path)
    assert publisher.asked == [("/gone.bin", "")] and said.waited == []


def test_a_request_to_a_busy_server_is_repeated(publisher, said, tmp_path):
    publisher.busy = [503, 429]
    assert said.downloader.fetch(remote(publisher), tmp_path).read_bytes() == CONTENT
    assert said.waited == [1.0, 2.0] and "the server says 503 Service Unavailable" in said[0]


def test_two_commands_cannot_fetch_the_same_file_at_once(publisher, said, tmp_path):
    with (
        own_file(tmp_path / "data.bin.part"),
        pytest.raises(RunError, match="another command is fetching .*data.bin.part now; wait until"),
    ):
        said.downloader.fetch(remote(publisher), tmp_path)
    assert said.downloader.fetch(remote(publisher), tmp_path).read_bytes() == CONTENT


def test_a_refused_connection_is_tried_four_times_and_then_reported(said, tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/data.bin"
        with pytest.raises(
            RunError, match="data.bin cannot be fetched .*refused.*run the same command again"
        ):
            said.downloader.fetch(RemoteFile("data.bin", (address,), md5(CONTENT)), tmp_path)
    assert said.waited == [1.0, 2.0, 4.0]


def test_each_mirror_is_tried_once_without_name_resolution_and_the_path_is_named(said, tmp_path, monkeypatch):
    """The error is the one that Python raises on a machine without a network, because no name is resolved."""

    def unknown(*where, **more):
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    mirrors = ("http://one.invalid/data.bin", "http://two.invalid/data.bin")
    with pytest.raises(RunError) as error:
        said.downloader.fetch(RemoteFile("data.bin", mirrors, md5(CONTENT)), tmp_path)
    assert said == [] and said.waited == []
    words = str(error.value)
    assert all(f"{one}: [Errno -3] Temporary failure" in words for one in mirrors)
    assert words.endswith(f"put the file there by hand, as {tmp_path / 'data.bin'}: docs/data.md")


def test_an_interrupt_keeps_the_partial_file_and_the_error_names_it(publisher, tmp_path):
    def interrupted(seconds):
        raise KeyboardInterrupt

    publisher.breaks = [300_000]
    with pytest.raises(StoppedError, match="stopped; 300.0 kB of it are kept in "):
        Downloader(lambda words: None, interrupted).fetch(remote(publisher), tmp_path)


def test_a_path_that_cannot_be_written_is_refused_with_the_reason(publisher, said, tmp_path):
    (tmp_path / "file").write_text("")
    published = Published((remote(publisher),))
    with pytest.raises(RunError, match="cannot be written: .*; --root names another folder"):
        fetch(published, tmp_path / "file", said.downloader)
    (tmp_path / "data.bin.part").mkdir()
    with pytest.raises(RunError, match="data.bin.part cannot be written: Is a directory"):
        fetch(published, tmp_path, said.downloader)


def archive(members):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def published_archive(publisher, members, listed):
    content = archive(members)
    publisher.files["/set.tar.gz"] = content
    return Published(
        (remote(publisher, "set.tar.gz", content),), "set", tuple((n, md5(c)) for n, c in listed.items())
    )


def test_only_listed_files_of_an_archive_are_unpacked_and_damaged_files_are_fetched_again(
    publisher, said, tmp_path
):
    listed = {"a": b"first", "b": b"second"}
    members = {"set/readme": b"not listed", **{f"set/{n}": c for n, c in listed.items()}}
    members |= {"../outside": b"x", "/absolute": b"x", "set/../../up": b"x", "set/link": None}
    published = published_archive(publisher, members, listed)
    for _ in range(2):
        fetch(published, tmp_path / "root", said.downloader)
    files = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file() or p.is_symlink()}
    assert files == {"root/set/a", "root/set/b"}
    assert len(publisher.asked) == 1 and said[-1] == "set/: 2 files are there already"
    (tmp_path / "root" / "set" / "a").write_bytes(b"damaged")
    fetch(published, tmp_path / "root", said.downloader)
    assert (tmp_path / "root" / "set" / "a").read_bytes() == b"first" and len(publisher.asked) == 2


@pytest.mark.parametrize("members", [{"set/a": b"other"}, {"elsewhere/a": b"first"}, {"set/a": None}])
def test_an_archive_without_the_listed_files_changes_nothing(publisher, said, tmp_path, members):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a").write_bytes(b"of before")
    published = published_archive(publisher, members, {"a": b"first"})
    with pytest.raises(
        RunError, match="lacks files of set, or their checksums are wrong; delete the archive"
    ):
        fetch(published, tmp_path, said.downloader)
    assert (tmp_path / "set" / "a").read_bytes() == b"of before"
    assert {p.name for p in tmp_path.iterdir()} == {"set", "set.tar.gz"}


def test_addresses_and_checksums_are_the_same_as_in_torchvision():
    sets = import_torchvision().datasets
    for name, cls in {"mnist": sets.MNIST, "fashion": sets.FashionMNIST}.items():
        found = SETS[name].published().files
        assert [(f.name, f.md5) for f in found] == cls.resources
        assert all(f.addresses == tuple(mirror + f.name for mirror in cls.mirrors) for f in found)
    for name, cls in {"usps": sets.USPS, "svhn": sets.SVHN}.items():
        found = SETS[name].published().files
        assert [[*f.addresses, f.name, f.md5] for f in found] == [
            cls.split_list[p] for p in ("train", "test")
        ]
    for name, cls in {"cifar10": sets.CIFAR10, "cifar100": sets.CIFAR100}.items():
        found = SETS[name].published()
        assert [(f.name, f.addresses, f.md5) for f in found.files] == [
            (cls.filename, (cls.url,), cls.tgz_md5)
        ]
        listed = [*cls.train_list, *cls.test_list, [cls.meta["filename"], cls.meta["md5"]]]
        assert (found.folder, [list(one) for one in found.members]) == (cls.base_folder, listed)
    assert all(len(f.md5) == 32 for one in SETS.values() if one.published for f in one.published().files)


def test_a_torchvision_without_the_expected_lists_is_refused_with_a_fix():
    with pytest.raises(
        DataError,
        match="torchvision.datasets.mnist.Gone has no value for mirrors; install its newest release",
    ):
        mirrored("mnist", "Gone")
    with pytest.raises(DataError, match="datasets/gone.py is not installed; install its newest release"):
        mirrored("gone", "MNIST")


def test_common_spellings_of_the_name_of_a_data_set_are_accepted():
    assert [named(text) for text in ("MNIST", "CIFAR-10", "cifar 100", "svhn")] == [
        "mnist", "cifar10", "cifar100", "svhn",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--fetch", "minst"],
            "--fetch is 'minst'; did you mean mnist? there are digits, mnist, fashion, usps",
        ),
        (
            ["--fetch", "pacs"],
            "--fetch is 'pacs', but its publisher gives no checksum; docs/data.md says where",
        ),
        (["--fetch", "mnist", "--picture"], "--fetch takes no settings, --picture or --set"),
        (["--fetch", "mnist", "--fetch", "usps", "--root", "x"], "--root is one folder, and --fetch names 2"),
        (["--set", "a=1"], "data takes settings files, or --fetch NAME"),
    ],
)
def test_wrong_arguments_of_fetch_are_refused_in_one_line(capsys, words, said):
    assert main(["data", *words]) == 2
    err = capsys.readouterr().err
    assert said in err and len(err.splitlines()) == 1


TORCHVISION = """
raise ImportError("nobody may import this")
class MNIST:
    mirrors = {mirrors}
    resources = {resources}
"""


def test_fetch_prints_the_licence_first_and_the_fetched_data_can_be_read(tmp_path):
    """The command is a process; its torchvision cannot be imported and names the test's server."""
    write_mnist(tmp_path / "published", 200, 50)
    idx = sorted((tmp_path / "published").iterdir())
    files = {f"{path.name}.gz": gzip.compress(path.read_bytes()) for path in idx}
    with publishing() as publisher:
        publisher.files |= {f"/{name}": content for name, content in files.items()}
        fake = tmp_path / "fake" / "torchvision" / "datasets"
        fake.mkdir(parents=True)
        (fake.parent / "__init__.py").write_text("raise ImportError('nobody may import this')")
        resources = [(name, md5(content)) for name, content in files.items()]
        (fake / "mnist.py").write_text(TORCHVISION.format(mirrors=[publisher.address], resources=resources))
        path = os.pathsep.join([str(tmp_path / "fake"), str(ROOT)])
        environment = {**os.environ, "PYTHONPATH": path, "PROTOFLEET_DATA": str(tmp_path / "cache")}
        command = [sys.executable, "-m", "protofleet", "data", "--fetch", "MNIST"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("mnist: CC BY-SA 3.0, Yann LeCun")
    assert lines[-1] == f'mnist is in {tmp_path}/cache/mnist; in an experiment: data = {{ source = "mnist" }}'
    shard = load_shard(DataSettings("mnist", root=str(tmp_path / "cache" / "mnist"), size=8, validation=0))
    assert (len(shard.train.y), len(shard.test.y)) == (200, 50)
