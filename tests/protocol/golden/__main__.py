"""Append the cases that have no vector yet; those that have one stay as they are."""

from tests.protocol.golden.cases import CASES, KEYS
from tests.protocol.golden.vectors import FILE, dump, load, vector_of


def main() -> None:
    book = load() if FILE.exists() else {"keys": KEYS, "vectors": []}
    known = {vector["name"] for vector in book["vectors"]}
    for name, case in CASES.items():
        if name not in known:
            book["vectors"].append(vector_of(name, case))
            print(f"added {name}")
    dump(book)


main()
