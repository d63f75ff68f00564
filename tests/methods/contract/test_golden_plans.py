"""Tests that the plan of a run without new features keeps the same bytes, because devices in use hash plans."""

from pathlib import Path

import pytest

from protofleet import methods
from protofleet.methods.contract.catalog import names
from protofleet.methods.contract.plan import Network, Plan, read_plan

DIGESTS = {  # Made by the version before wire minor 1. Add lines, but never change one.
    "adcol": "62ff60d9da02fd15dffd652eb94ee8e82922720bda47f53315ef5c22ae09f99c",
    "apfl": "384ee36f33dcb7cda9d2e63dcf69ceba871bbedcc173ad47f05e04335164ef85",
    "ditto": "3da7fe1fa83fa19dddd9534736c69e3f15de39e2f4e49197f4916f39fbef974f",
    "fcclplus": "1cd2e887ddcbe181045b5a930628037fe3d2122dc771f6c065d0d1e459371af8",
    "fedadagrad": "1604198a97db72b327df87a2b7ed29cb4afb5462b7dec047d6100794e2514a5f",
    "fedadam": "5be71f2158548aee5c6ab730ef2da553c3f63c831033d99f08d1c47b2673bdbd",
    "fed3r": "989efded09a0c3c76b210a91f05d89126afe6100bd5475a9def7bcd552e9abe2",
    "fedavg": "6e40c344072e910ad25de179150ee1854e5e53381eabc848950ead4b0cafc34a",
    "fedavgm": "33fb9b0d0f7be4a6250ebce34f7ea0b092e3bfd1d436fa3efaed585d0a761f0c",
    "fedbn": "1c753811e3bd862ea949ae525cc638853358362875f97a1a7ef41037bd54947a",
    "feddap": "a87d11f767c055898a66d1591c7d1f38377e60ad1c788f23fec0a9c860f669c6",
    "fedcof": "04992de1e9df68dd5438f85b5fac2368951d232c62d58cb5e85e290381ec1d64",
    "feddistill": "4ae066be4dd046301c219d5bc776eb77aec755ea55eb51f73ee8a7d7a832dda9",
    "feddyn": "155255808ec8459c5affac22dbdeabcb8c62fbaaabee0b9b482caaa8ba584fdb",
    "fedga": "5ff41df1c578258fb703979521b21529afaf648f71f194cc7496dce4544b7ba2",
    "fedgen": "6795670245ea4be8a6d56ee80884cdacaf582c62fc4b3d6b99523be322ef4708",
    "fedgh": "8f213902a30bf17f1ae5c0277ae429267dee0fd2226b331d8cf0a426e46cc2f3",
    "fedgram": "dc058fda24d0fa0d08d0a34ccf84b9b240e00d14aa21247128137ff7fac41a22",
    "fedheal": "9532c34cb4e036fbcd3843a6ac22a5a7967b4e3e93bede2d9403c1073edaaa6b",
    "fedhp": "03c921ec55c97807ce25ed7caf4ee16a86f203da5d6c628384ff3fc523251b84",
    "fedkd": "eb2a36e71a459b0525a491f13df9b533f233c3d03fd35c25747060e92fe32b6b",
    "fedlsa": "e857c3212baadcc02dbadeaaa263297a7b10a3e8641146d1e34b9e6d9211debf",
    "fedncm": "0a6d3d38825495ff5c8f27cb01fc6834d4ae1313351a20cabf07723bed208374",
    "fednh": "4d2847297dc976727c13b9d63c468c0f681f08291ea0a885d9ea027445ec7c6a",
    "fednova": "9cee35d07d12768e78752191e92e1148811f108497c088eadb88703c55adf090",
    "fedpall": "b150d5354bb83bedcd0415c86b64fd3a443fcc3c32aa3a4b3c99489024532768",
    "fedper": "3d43286a16b79c0ba156ecfd9a309464f64fd1f4c1e3c441518fb36d78ff5600",
    "fedpcl": "9fb50da553039d26fec2b6b9be18f779ed70a158962441b3f5fc2a89a0f01f83",
    "fedpft": "e438cbed4576e8b5f5fdf5c43f537b9713a6359505a1a2975355934a785baaa5",
    "fedplcc": "df3dbbd46ab45de524677634e2fa592254bf2c393bb59d8a18ce420844c603ac",
    "fedplvm": "33297fd99a30edb7dd704e3b044284cf11c30fceea16666a7f0c8343fa39fddb",
    "fedproto": "300616e534e4c6f97590c0d23e434eb1d4c724a945f823b6c82e736b5ff76a1c",
    "fedprox": "35f9f2efdee6f0eb0d4cc915eced5208cfc147418b44e0c0efabbb045131a547",
    "fedrep": "bd179e7f7a2b795c1f6315a47ed169c842b92f73a41efcf779186e839acbc79a",
    "fedsa": "03950676a059e289679aa7c3213ea6d061fc24587ba4d8a95908ea30b129f18a",
    "fedsr": "59a4e22a39fd3c270563b2b25ef095de39d571194bcb967bdb6b5c0d3080bf2e",
    "fedtgp": "370c62d819d8fbef8a40aca0b7dc29d3de454ff70f58608e282c82610fea2341",
    "fedyogi": "189f4ba5629e930709ec9826aa9d5a3617785e3e362f29ebb4f6ee9dea1a3175",
    "fml": "34ce6d105d8405a0c99eda5e11070df77952419ca41bc0e84f8cfe1fef9d1812",
    "fpl": "2980c340df7290f5d8064afad75d3b3fcba794382679bc491b0445c51eb5f160",
    "ghofl": "96247dd2c7095d51b1253489441e22e97d035e84bd65d89124ff1c2f04b298aa",
    "lgfedavg": "6f18ddce5c2e5604ec87f164301ff39ba4d3861d8145c88bb1badc0494901190",
    "moon": "9c90a9a3a23f8aa3bac9072d3980ab5a597d2c464b03193f088fb92fe61934c1",
    "perfedavg": "1ca566be54b8586633b77700a45acde4ddbd9b4bf52d37be3543541e93fe9706",
    "rucr": "8d6d20db8aa2f4e6e4ec3d474b8b28934261104e789e2e28fcb3c07c3d7f3803",
    "scaffold": "69201af9aebdf4bdd97900f5910650b87d9c985fa8f87b98770d52a60771591e",
    "singleset": "4e6872dd15eac0bf4432c3b4c8e3a4a16b4abe73daff09f0e38c234fb34bf23f",
    "tinyproto": "733a59fb8e33621e2e0326f85d4994b1e0735bade5e1cbccfc03d5ed5a3cc053",
}
FULL = Plan("fedplcc", 7, 30, 5, 64, Network("cnn4", 128, 32, "mlp"), {"lr": 0.05}, 1)
FULL_BYTES = (
    b'{"channels": 1, "classes": 7, "hyper": {"lr": 0.05}, "method": "fedplcc", "network": {"embedding_size": 32, '
    b'"feature_size": 128, "head": "mlp", "name": "cnn4"}, "rounds": 30, "seed": 5, "size": 64}'
)


@pytest.mark.parametrize("method", DIGESTS)
def test_the_plan_of_a_method_has_the_same_hash_as_in_earlier_versions(method):
    assert Plan(method, 10, 50).digest.hex() == DIGESTS[method]


def test_the_table_has_a_hash_for_every_method_of_the_package():
    here = Path(methods.__file__).parent  # Tests add their own shapes to the package.
    assert {name for name in names() if (here / f"{name}.py").exists()} == set(DIGESTS)


def test_a_plan_with_all_settings_has_the_same_bytes_as_in_earlier_versions():
    assert FULL.encode() == FULL_BYTES and read_plan(FULL_BYTES) == FULL
