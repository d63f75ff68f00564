"""Tests that no key file is used as another kind of key, and that other users cannot read key files."""

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from protofleet.protocol.security.keyfiles import KeyFileError
from protofleet.protocol.security.keys import (
    Keys,
    load_keyring,
    load_keys,
    load_public,
    save_keys,
    save_public,
)

KEYS = {name: Keys.new() for name in "ab"}
RING = {name: keys.public for name, keys in KEYS.items()}


def test_a_key_file_is_readable_only_by_its_owner_and_is_read_back(tmp_path):
    for name in ("fresh", "deep/fresh", "old"):
        path = tmp_path / name
        (tmp_path / "old").touch(mode=0o644)
        keys = Keys.new()
        save_keys(path, keys)
        assert path.stat().st_mode & 0o777 == 0o600
        assert load_keys(path).public == keys.public


def pem(key, password=None):
    secret = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret)


def public_pem(key):
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, form)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: b"", "is not a private key in PEM form"),
        (lambda: b"\xff\x00 secret", "is not a private key in PEM form"),
        (lambda: public_pem(KEYS["a"].sign), "is not a private key in PEM form"),
        (lambda: pem(KEYS["a"].sign, b"password"), "is not a private key in PEM form"),
        (
            lambda: pem(rsa.generate_private_key(65_537, 2048)),
            "holds a RSAPrivateKey, not Ed25519 and X25519",
        ),
        (lambda: pem(ec.generate_private_key(ec.SECP256R1())), "PrivateKey, not Ed25519 and X25519 keys"),
        (
            lambda: pem(KEYS["a"].sign),
            "lacks an X25519 key to receive with; remove the file, then make both keys with `protofleet keys`",
        ),
        (lambda: pem(KEYS["a"].receive), "lacks an Ed25519 key to sign with"),
    ],
)
def test_a_file_that_does_not_hold_both_keys_is_refused_with_the_reason(tmp_path, make, words):
    (tmp_path / "key").write_bytes(make())
    with pytest.raises(KeyFileError, match=words):
        load_keys(tmp_path / "key")


@pytest.mark.parametrize("load", [load_keys, load_public])
def test_the_error_names_a_missing_or_unreadable_key_file(tmp_path, load):
    with pytest.raises(KeyFileError, match=r"there is no .*key .*gone; `protofleet keys` makes one"):
        load(tmp_path / "gone")
    with pytest.raises(KeyFileError, match="cannot be read"):
        load(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "00" * 32, "00" * 64, "00" * 31 + "\n" + "00" * 33, "g" * 64, "0" * 63, "é"]
)
def test_a_file_that_holds_no_public_key_is_refused(tmp_path, text):
    (tmp_path / "a.pub").write_text(text, encoding="utf-8")
    with pytest.raises(
        KeyFileError,
        match=r"a\.pub (contains .*bytes, but must contain two keys of 32|must contain two lines)",
    ):
        load_public(tmp_path / "a.pub")


def test_a_keyring_is_a_folder_of_public_keys_named_by_their_devices(tmp_path):
    with pytest.raises(KeyFileError, match="there are no public keys"):
        load_keyring(tmp_path / "empty")
    save_public(tmp_path / "plant-3.arm_2.pub", RING["a"])
    save_public(tmp_path / "b.pub", RING["b"])
    (tmp_path / "b.key").write_text("not looked at")
    assert load_keyring(tmp_path) == {"plant-3.arm_2": RING["a"], "b": RING["b"]}
