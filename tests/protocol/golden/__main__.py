"""Append a vector for each case that has none yet; existing vectors are not changed."""

import sys

from tests.protocol.golden.cases import CASES
from tests.protocol.golden.vectors import FILE, SECRETS, dump, load, ring, vector_of


def main() -> None:
    keys = {
        name: {
            "private": SECRETS[name].hex(),
            "public": ring()[name].sign.hex(),
            "receive": ring()[name].receive.hex(),
        }
        for name in SECRETS
    }
    book = {"keys": keys, "vectors": load()["vectors"] if FILE.exists() else []}
    known = {vector["name"] for vector in book["vectors"]}
    for name, case in CASES.items():
        if name not in known:
            book["vectors"].append(vector_of(name, case))
            sys.stdout.write(f"added {name}\n")
    dump(book)


main()
