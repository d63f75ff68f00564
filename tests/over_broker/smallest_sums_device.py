"""The device of docs/examples/device.py, extended by the steps of masked sums.

python smallest_sums_device.py HOST PORT KEYS FOLDER CLASSES EXAMPLES

Section 14 of docs/protocol.md is its only source. It knows two methods: FedAvg and FedProto.
"""

import importlib.util
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import msgpack
import numpy as np


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    made = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = made
    spec.loader.exec_module(made)
    return made


HERE = Path(__file__).parent
sums = loaded(HERE / "smallest_sums.py")
device = loaded(HERE.parents[1] / "docs" / "examples" / "device.py")
device.CAN = [*device.CAN, "secagg"]
Refused, check = sums.Refused, sums.check
VALUES, PRESENCE = "values", "presence"


# -- the work of its methods, with made-up numbers


class Weights:
    """FedAvg: each array is averaged by examples."""

    stages, masked = (VALUES,), "weights.masked"

    def __init__(self, sent, **other):
        self.sent = sent

    def length(self):
        return sum(len(array.numbers) for array in self.sent.values())

    def numbers(self, examples, most, dice):
        """Return the vector, and the classes that the device holds."""
        new = {name: array._replace(numbers=self.changed(array, dice)) for name, array in self.sent.items()}
        return sums.weights_vector(self.sent, new, examples, most), []

    @staticmethod
    def changed(array, dice):
        if array.dtype.startswith("float"):
            return [n * dice.uniform(0.998, 1.0) for n in array.numbers]
        return [n + 5 for n in array.numbers]


class Rows:
    """FedProto: a mean of each class, and each device counts once."""

    stages, masked = (PRESENCE, VALUES), "prototypes.masked"

    def __init__(self, sent, classes, width):
        self.classes, self.width = classes, width

    def length(self):
        return self.classes * (self.width + 1)

    def numbers(self, examples, most, dice):
        held = [*range(1, self.classes)]  # It has no samples of class 0.
        means = {label: [dice.uniform(-1, 1) for _ in range(self.width)] for label in held}
        return sums.rows_vector(means, self.classes, self.width), held


METHODS = {"fedavg": Weights, "fedproto": Rows}


# -- what is kept when the process ends


class Book(dict):
    """All that a device must not forget of an attempt, in one file."""

    def __init__(self, path):
        super().__init__(run="", nonce=b"")
        self.path = path
        if path.exists():
            self.update(msgpack.unpackb(path.read_bytes()))

    def write(self):
        with self.path.with_suffix(".new").open("wb", 0) as file:
            file.write(msgpack.packb(dict(self)))
            os.fsync(file.fileno())
        self.path.with_suffix(".new").replace(self.path)

    def enter(self, run, round):
        """Begin a round; the survivors of the last sums are kept as long as the run."""
        if self["run"] != run:
            self.update(run=run, round=0, last={})
        check(round >= self["round"], f"round {round} is older than {self['round']}")
        if round > self["round"]:
            self.update(round=round, seen=[], spent=[], base=b"")


# -- the steps


class SumsDevice(device.Device):
    """A device that answers the steps of masked sums."""

    def __init__(self, keys, folder, classes, examples):
        super().__init__(keys, folder, classes, examples)
        self.folder, self.book, self.settings = folder, Book(folder / "sums"), None

    def on_welcome(self, header, fields):
        plan = json.loads(fields["plan"])
        self.settings, self.method = plan.get("secagg"), METHODS.get(plan["method"])
        self.width = fields.get("about", {}).get("embedding", 0)
        super().on_welcome(header, fields)

    def coded(self, arrays, sent):
        """Return the arrays of the update instead of the made-up ones; an error means that nothing is sent."""
        header, fields = self.task
        phase, _, step = header.phase.partition(".")
        if not self.settings:
            return super().coded(arrays, sent)
        if phase == "evaluate":
            return {}  # whatever `wants` requests
        given = {name: bytes(array.numbers) for name, array in sent.items() if array.dtype == "uint8"}
        found = (
            self.answered(step, given, fields.get("personal", b""))
            if step
            else self.begun(header, given, sent)
        )
        self.book.write()
        return {name: device.Array("uint8", [len(data)], data) for name, data in found.items()}

    def answered(self, step, given, personal):
        book, (stage, _, name) = self.book, step.rpartition(".")
        check(given["control.attempt"] == book["nonce"], "the task is of another attempt")
        try:
            check(step not in book["steps"], f"another task of the step {step}")
            book["steps"].append(step)
            return getattr(self, f"step_{name}")(stage or VALUES, given, personal)
        except device.FAULTS:
            book["nonce"] = b""  # In this attempt the device sends nothing more.
            book.write()
            raise

    def begun(self, header, given, sent):
        book, own = self.book, {n: sent[n] for n in sorted(sent) if not n.startswith("control.")}
        book.enter(header.run, header.round)
        work, most = self.method(own, classes=self.classes, width=self.width), sent["control.most"].numbers[0]
        body = device.hashlib.sha256(device.encode(own)[0]).digest()
        base = sums.digest("base", body, most.to_bytes(8, "little"))
        terms = {stage: given[f"control.{stage}.terms"] for stage in work.stages}
        for stage, data in terms.items():
            self.check_terms(sums.read_terms(data), stage, base, work)
        [nonce] = {sums.read_terms(data).nonce for data in terms.values()}
        check(len(nonce) == 16 and nonce not in book["seen"], "the nonce has been seen")
        if book["base"] != base:  # Otherwise this is a later attempt with the same update.
            numbers, held = work.numbers(self.examples, most, random.Random())
            book.update(base=base, numbers=numbers, held=held)
        secrets = {stage: [os.urandom(32) for _ in range(3)] for stage in terms}
        book.update(nonce=nonce, seen=[*book["seen"], nonce], terms=terms, secrets=secrets, steps=[])
        k = self.keys
        return {f"control.{s}.keys": sums.made_keys(k.sign, terms[s], k.name, secrets[s]) for s in terms}

    def check_terms(self, given, stage, base, work):
        """Compare the terms with those that this device computes; it takes over the nonce and the devices."""
        s, book, present, devices = self.settings, self.book, stage == PRESENCE, given.devices
        apart = s["holders"] if PRESENCE in work.stages and s["strict_cohort"] else 0
        check(stage not in book["spent"] or (present and apart), f"the stage {stage} of this round is over")
        limit, bits = (1.0, 16 if devices > 127 else 8) if present else (float(s["limit"]), s["bits"])
        fraction = 0 if present else sums.fraction_of(devices, limit, bits)
        length = self.classes if present else work.length()
        place = self.keys.federation, book["run"], book["round"], given.nonce, stage, base
        expected = sums.Terms(*place, length, devices, limit, fraction, bits, s["least"], apart)
        check(given == expected, f"the terms of the stage {stage} differ")

    def step_shares(self, stage, given, personal):
        book, found = self.book, {}
        book.update(rosters={}, records={}, own={}, first={}, opened={}, survivors={})
        for stage in book["terms"]:
            book["rosters"][stage] = given[f"control.{stage}.roster"]
            book["records"][stage] = given[f"control.{stage}.records"]
            party = self.party(stage)
            pairs = party.split()
            book["own"][stage] = pairs[self.keys.name]
            found[f"control.{stage}.shares"] = party.seal(pairs)
        return found

    def roster(self, stage):
        book, folder = self.book, self.keys.folder
        rows, records = book["rosters"][stage], book["records"][stage]
        roots, revoked = (sums.unarmoured((folder / name).read_text()) for name in ("roots", "revoked"))
        trust = sums.Trust(self.keys.federation, sums.roots_in(roots), sums.revoked_in(revoked), time.time())
        return sums.Roster(book["terms"][stage], rows, sums.read_records(records, trust))

    def party(self, stage):
        return sums.Party(self.roster(stage), self.keys.name, self.book["secrets"][stage], self.keys.sign)

    def step_masked(self, stage, given, personal):
        book, party, bitmap = self.book, self.party(stage), given[f"control.{stage}.first"]
        first = party.first(bitmap)
        opened = party.open(first, personal, book["own"][stage])
        words = sums.encode(self.numbers(stage, given), party.roster.terms)
        vector = party.masked(words, first)
        book["first"][stage], book["opened"][stage] = bitmap, opened
        self.note(stage, words)
        return {
            "control.presence.masked" if stage == PRESENCE else self.method.masked: vector,
            f"control.{stage}.signature": self.keys.sign.sign(sums.masked_text(party.roster, bitmap, vector)),
            f"control.{stage}.opened": sums.bits_of(opened, party.roster.names),
        }

    def note(self, stage, words):
        """Write the words down, so that a test can check the sum."""
        np.save(self.folder / f"{sums.digest('terms', self.book['terms'][stage]).hex()}.npy", words)

    def numbers(self, stage, given):
        if stage == PRESENCE:
            return [float(label in self.book["held"]) for label in range(self.classes)]
        if PRESENCE not in self.book["terms"]:
            return self.book["numbers"]
        rows = np.array(self.book["numbers"]).reshape(self.classes, -1)
        rows[self.holders(given) < self.settings["holders"]] = 0
        return rows.ravel()

    def holders(self, given):
        """Return the count of each class that the signed vectors of the stage `presence` prove."""
        bitmaps = (self.book[kind][PRESENCE] for kind in ("first", "survivors"))
        parts = (given[f"control.presence.{part}"] for part in ("vectors", "signatures", "seeds", "lost"))
        counts = sums.sum_of(self.roster(PRESENCE), *bitmaps, *parts)
        self.book["counts"] = counts.tolist()
        return counts

    def step_agree(self, stage, given, personal):
        book, party, bitmap = self.book, self.party(stage), given[f"control.{stage}.survivors"]
        first = book["first"][stage]
        alive = party.survivors(bitmap, party.first(first), book["last"].get(stage, []))
        if stage == VALUES and PRESENCE in book["terms"]:
            self.check_holders(alive)
        book["survivors"][stage] = bitmap
        return {
            f"control.{stage}.signature": self.keys.sign.sign(sums.agreed_text(party.roster, first, bitmap))
        }

    def check_holders(self, alive):
        """Check that each class of the sum still has enough holders without the devices lost since."""
        counted = sums.members_of(self.book["survivors"][PRESENCE], self.roster(PRESENCE).names)
        lost, least = len({*counted} - {*alive}), self.settings["holders"]
        few = [label for label, count in enumerate(self.book["counts"]) if least <= count < least + lost]
        check(not few, f"the classes {few} could have too few holders")

    def step_unmask(self, stage, given, personal):
        book, party = self.book, self.party(stage)
        first, survivors = book["first"][stage], book["survivors"][stage]
        party.check_agreed(given[f"control.{stage}.signatures"], first, survivors)
        firsts, alive = (sums.members_of(bitmap, party.roster.names) for bitmap in (first, survivors))
        found = sums.released(book["opened"][stage], firsts, alive)
        book["spent"].append(stage)
        book["last"][stage] = alive
        for secret in ("secrets", "opened", "own"):
            del book[secret][stage]
        if stage == VALUES:
            book.update(numbers=[], held=[])
        return {f"control.{stage}.released": found}


if __name__ == "__main__":
    host, port, keys, folder, classes, examples = sys.argv[1:]
    made = SumsDevice(device.read_keys(Path(keys)), Path(folder), int(classes), int(examples))
    signal.signal(signal.SIGTERM, lambda *_: made.inbox.put(lambda: made.end(0, "told to stop")))
    sys.exit(made.live(host, int(port)))
