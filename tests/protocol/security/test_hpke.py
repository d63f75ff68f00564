"""Tests that the library that we use and the plain HPKE of a foreign client follow RFC 9180."""

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from protofleet.protocol.security.envelope import HPKE
from tests.protocol import hpke

# RFC 9180, appendix A.2.1: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20Poly1305, base mode.
INFO = bytes.fromhex("4f6465206f6e2061204772656369616e2055726e")
EPHEMERAL = bytes.fromhex("f4ec9b33b792c372c1d2c2063507b684ef925b8c75a42dbcbf57d63ccd381600")
ENC = bytes.fromhex("1afa08d3dec047a643885163f1180476fa7ddb54c6a8029ea33f95796bf2ac4a")
RECEIVER = bytes.fromhex("8057991eef8f1f1af18f4a9491d16a1ce333f695d4db8e38da75975c4478e0fb")
PUBLIC = bytes.fromhex("4310ee97d88cc1f088a5576c77ab0cf5c3ac797f3d95139c6c84b5429c59662a")
SHARED = bytes.fromhex("0bbe78490412b4bbea4812666f7916932b828bba79942424abb65244930d69a7")
KEY = bytes.fromhex("ad2744de8e17f4ebba575b3f5f5a8fa1f69c2a07f6e7500bc60ca6e3e3ec1c91")
NONCE = bytes.fromhex("5c4d98150661b848853b547f")
TEXT = bytes.fromhex("4265617574792069732074727574682c20747275746820626561757479")
AAD = b"Count-0"
SEALED = bytes.fromhex(
    "1c5250d8034ec2b784ba2cfd69dbdb8af406cfe3ff938e131f0def8c8b60b4db21993c62ce81883d2dd1b51a28"
)


def test_the_plain_hpke_computes_all_numbers_of_the_rfc():
    ephemeral, receiver = map(X25519PrivateKey.from_private_bytes, (EPHEMERAL, RECEIVER))
    assert ephemeral.public_key().public_bytes_raw() == ENC
    assert receiver.public_key().public_bytes_raw() == PUBLIC
    secret = hpke.shared_secret(receiver.exchange(X25519PublicKey.from_public_bytes(ENC)), ENC, PUBLIC)
    assert secret == SHARED
    assert hpke.schedule(secret, INFO) == (KEY, NONCE)
    assert hpke.seal(TEXT, PUBLIC, INFO, AAD, ephemeral) == ENC + SEALED
    assert hpke.unseal(ENC + SEALED, receiver, INFO, AAD) == TEXT


def test_the_library_and_the_plain_hpke_open_messages_of_each_other():
    receiver = X25519PrivateKey.generate()
    public = receiver.public_key()
    for text in (b"", b"x", bytes(70_000)):
        assert hpke.unseal(HPKE.encrypt(text, public, info=INFO), receiver, INFO) == text
        assert HPKE.decrypt(hpke.seal(text, public.public_bytes_raw(), INFO), receiver, info=INFO) == text
