"""Fuzzers: hostile input, case after case. Bad input must be one line of InputError, or of SweepError; never another
exception, another process's death, or a wrong answer.

`python -m tests.fuzz --cases 10000` runs every fuzzer so often, `--only NAME` one of them; a failing case names the
seed that repeats it. The default suite runs a few cases of each (tests/test_fuzz.py).

A fuzzer is a class with `__init__(self, directory)`, which prepares files of its own, and `case(self, chance)`, which
makes one case from a `random.Random`, raises on misbehaviour and returns whether the case was refused. `register` it
here, or in a module that FUZZERS_IN names, so that the commands above find it.
"""

import argparse
import contextlib
import decimal
import fractions
import importlib
import io
import json
import random
import shutil
import tempfile
import warnings
import zipfile
from pathlib import Path

import numpy as np

import dubnb
from dubnb.methods import METHODS
from dubnb.sweeps import SweepError, status
from dubnb.sweeps.ledger import LEDGER, Ledger
from tests.sweep_tools import FIXED, tiny_log

FUZZERS = {}
FUZZERS_IN = ("tests.fuzz_logs",)  # modules that register more
REFUSALS = (dubnb.InputError, SweepError)


def register(name):
    """Make a fuzzer known by its name."""

    def add(fuzzer):
        FUZZERS[name] = fuzzer
        return fuzzer

    return add


def refused(function, *args, **options):
    """(True, None) if the call was refused in one line, (False, its result) if not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return False, function(*args, **options)
    except REFUSALS as error:
        text = str(error)
        if "\n" in text or not text or len(text) > 2000:
            raise AssertionError(f"not one line: {text[:300]!r}") from error
        return True, None


# ---- bytes ---------------------------------------------------------------------------------------------------------


def _flip(content, chance):
    for _ in range(chance.choice((1, 1, 2, 8))):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)


def _cut(content, chance):
    del content[chance.randrange(len(content)) :]


def _insert(content, chance):
    at = chance.randrange(len(content) + 1)
    content[at:at] = chance.randbytes(chance.choice((1, 4, 100)))


def _remove(content, chance):
    at = chance.randrange(len(content))
    del content[at : at + chance.choice((1, 4, 100))]


def _copy(content, chance):
    length = chance.choice((1, 8, 64, 500))
    source, target = chance.randrange(len(content)), chance.randrange(len(content))
    content[target : target + length] = content[source : source + length]


def _extreme(content, chance):
    """A number at its extreme, where a length or an offset may be."""
    at, width = chance.randrange(len(content)), chance.choice((1, 2, 4, 8))
    content[at : at + width] = chance.choice((b"\0", b"\xff", b"\x7f")) * width


MUTATIONS = (_flip, _flip, _cut, _insert, _remove, _copy, _extreme)


def mutated(content, chance):
    """Some bytes changed in one to three ways."""
    content = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 3))):
        if content:
            chance.choice(MUTATIONS)(content, chance)
    return bytes(content)


# ---- model files ---------------------------------------------------------------------------------------------------


@register("model")
class ModelFiles:
    """Bytes of a model file changed, or what it holds changed and zipped again with right checksums."""

    def __init__(self, directory):
        self.path = Path(directory) / "model.npz"
        self.models = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, backbone in (("base", "mf"), ("dub", "ncf")):
                dubnb.make(name, backbone=backbone, **FIXED).fit(tiny_log()).save(self.path, overwrite=True)
                self.models.append(self.path.read_bytes())

    def case(self, chance):
        content = chance.choice(self.models)
        content = mutated(content, chance) if chance.random() < 0.5 else self._altered(content, chance)
        self.path.write_bytes(content)
        was_refused, model = refused(dubnb.load, self.path)
        if not was_refused:
            self._use(model)
        return was_refused

    def _altered(self, content, chance):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        name = chance.choice(sorted(members))
        if name == "header.json":
            members[name] = json.dumps(altered_json(json.loads(members[name]), chance)).encode()
        else:
            members[name] = mutated(members[name], chance)
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for each, data in members.items():
                archive.writestr(each, data)
        return out.getvalue()

    def _use(self, model):
        """Whatever loads must work."""
        _, found = refused(model.recommend, model.user_ids_.values[:5], k=3)
        if found is not None and not np.isfinite(found[1][~np.isnan(found[1])]).all():
            raise AssertionError("a score is not finite")
        repr(model)


JUNK = [None, True, -1, 0, 2**31, 2**63, 10**400, 1e308, -0.5, "", "x" * 5000, [], {}, [[]], "\0", "mf", [1] * 50]


def altered_json(value, chance):
    """A JSON value with something in it replaced, removed or renamed."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key, changed = chance.choice(sorted(value)), dict(value)
        how = chance.random()
        if how < 0.1:
            del changed[key]
        elif how < 0.2:
            changed[str(chance.choice(JUNK))[:50]] = changed.pop(key)
        else:
            changed[key] = altered_json(value[key], chance)
        return changed
    if isinstance(value, list) and value and chance.random() < 0.7:
        changed, at = list(value), chance.randrange(len(value))
        changed[at] = altered_json(value[at], chance)
        return changed[: chance.randrange(len(changed) + 1)] if chance.random() < 0.1 else changed
    return chance.choice(JUNK)


# ---- ledgers -------------------------------------------------------------------------------------------------------


@register("ledger")
class Ledgers:
    """Bytes of a ledger changed: every row that is still given out must be one that was recorded."""

    IDENTITY = {"kind": "sweep", "method": "base"}

    def __init__(self, directory):
        self.sound, self.out = Path(directory) / "sound", Path(directory) / "damaged"
        self.sound.mkdir()
        with contextlib.closing(Ledger(self.sound, self.IDENTITY)) as ledger:
            ledger.note("select", ["auc", 0.0, None])
            ledger.note("trials", 12)
            for number in range(12):
                metrics = {"va_auc": number / 17, "ndcg": number / 19}
                row = {"key": f"{number:024x}", "status": "done", "params": {"lam": number / 23}, "metrics": metrics}
                ledger.record(row | {"seconds": number / 7, "versions": {"dubnb": "1"}, "seed": number})
            self.rows = {row["key"]: row for row in ledger.rows()}
        self.content = (self.sound / LEDGER).read_bytes()

    def case(self, chance):
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()
        (self.out / LEDGER).write_bytes(mutated(self.content, chance))
        was_refused, now = refused(status, self.out)
        if not was_refused and now["best"] is not None:
            self._compare(now["best"]["key"], now["best"]["metrics"], "metrics")
        was_refused, rows = refused(self._resumed)
        for row in rows or []:
            self._compare(row["key"], row, None)
        return was_refused

    def _resumed(self):
        with contextlib.closing(Ledger(self.out, self.IDENTITY)) as ledger:
            ledger.forget(ledger.damaged())
            return ledger.rows()

    def _compare(self, key, found, column):
        known = self.rows.get(key)
        if known is None or found != (known if column is None else known[column]):
            raise AssertionError(f"row {key} was given out changed: {str(found)[:200]}")


# ---- parameters ----------------------------------------------------------------------------------------------------


class Odd:
    """An object whose own text fails."""

    def __repr__(self):
        raise RuntimeError("no text")


VALUES = [
    *(None, True, False, 0, 1, -1, 2, 255, 2**31, 2**53, 2**64, 10**400, -(10**400)),
    *(0.0, -0.0, 0.5, 1e-320, 1e308, float("nan"), float("inf"), -float("inf"), 1 + 2j),
    *(np.uint8(255), np.int8(127), np.int64(-1), np.float16(0.1), np.float32(3e38), np.longdouble("1e4000")),
    *(
        np.bool_(True),
        np.str_("mf"),
        np.array(3),
        np.array([1, 2]),
        np.array([]),
        np.array("mf"),
        np.datetime64("2020"),
    ),
    *(fractions.Fraction(1, 3), decimal.Decimal("0.1"), "", "mf", "ncf", "dub", "exact", "auto", "acde", "a" * 10_000),
    *("1", b"mf", (), (1,), (0.5, 1.0), [4, 2], [], {}, {1}, object(), Odd(), print, int, range(3)),
]


@register("parameters")
class ParameterValues:
    """Odd values for some of a method's parameters: refused, or settled as plain Python."""

    PLAIN = (type(None), bool, int, float, str, tuple)

    def __init__(self, directory):
        self.data = tiny_log()

    def case(self, chance):
        cls = METHODS[chance.choice(sorted(METHODS))]
        names = sorted(cls().get_params())
        params = {name: chance.choice(VALUES) for name in chance.sample(names, chance.choice((1, 1, 1, 2, 3)))}
        was_refused, settled = refused(lambda: cls(**params).resolve(self.data))
        if was_refused:
            return True
        for name, value in settled.get_params().items():
            if name == "propensity":  # an array, which fit checks against the log
                continue
            if type(value) not in self.PLAIN:
                raise AssertionError(f"{cls.name}: {name}={params.get(name)!r} became a {type(value).__name__}")
            if isinstance(value, float) and not np.isfinite(value):
                raise AssertionError(f"{cls.name}: {name} became {value}")
        return False


# ---- running -------------------------------------------------------------------------------------------------------


def run(name, cases, first=0):
    """So many cases of a fuzzer, and how many were refused; the first that fails is raised with its seed."""
    n_refused = 0
    with tempfile.TemporaryDirectory() as directory:
        fuzzer = FUZZERS[name](directory)
        for seed in range(first, first + cases):
            try:
                n_refused += fuzzer.case(random.Random(f"{name} {seed}"))
            except Exception as error:
                raise AssertionError(f"fuzzer {name}, seed {seed}: {type(error).__name__}: {error}") from error
    return n_refused


def load_all():
    """Every fuzzer, those of other modules too."""
    for module in FUZZERS_IN:
        importlib.import_module(module)
    return FUZZERS


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000, metavar="N", help="of each fuzzer (default 10000)")
    parser.add_argument("--only", metavar="NAME", help="one fuzzer: " + ", ".join(load_all()))
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="of the first case")
    options = parser.parse_args()
    for name in [options.only] if options.only else FUZZERS:
        n_refused = run(name, options.cases, options.first)
        print(f"{name}: {options.cases} cases, {n_refused} refused in one line, the others right answers", flush=True)


if __name__ == "__main__":
    from tests import fuzz  # not from __main__: other modules register in this one

    fuzz.main()
