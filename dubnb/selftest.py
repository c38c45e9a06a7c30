"""`dubnb selftest`: check that training on this machine's devices gives the right results, and time it.

On the CPU two fits must give the same bits. On a GPU the samples must equal the CPU's, and two fits must give the same
bits. Scores must agree with the CPU's within float32's rounding after a few epochs. The epochs of the last stage are
timed on both. The report gives the ratio of the medians, and the smallest and largest ratio of single epochs.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np

from dubnb import cuda
from dubnb._random import generator
from dubnb._version import VERSION
from dubnb.data.partition import Partition
from dubnb.methods import make
from dubnb.methods._method import Method
from dubnb.objective.terms import EpochStreams, Term, term_c, term_d

SIZES = {
    "tiny": (30, 20, 200),
    "small": (300, 200, 6_000),
    "medium": (3_000, 1_000, 90_000),
    "large": (20_000, 2_000, 900_000),
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dub, mf": ("dub", {"rank": 32}),
    "dub, ncf": ("dub", {"backbone": "ncf", "rank": 16}),
    "dub, mf, two models": ("dub", {"loss": "mae", "rank": 32}),
    "cause, mf": ("cause", {"rank": 32}),
    "dub-x": ("dub-x", {"gamma": 0.02, "rank": 32}),
    "autodebias": ("autodebias", {"rank": 32, "weights_from": 1}),
}
EPOCHS = 4
TOLERANCE = 1e-3  # largest difference of two scores, in standard deviations of the scores


class DeviceCheck(NamedTuple):
    """One check of a method on a device."""

    what: str
    size: str
    device: str
    passed: bool
    detail: str
    ms: float | None = None  # median milliseconds of an epoch
    ratio: tuple[float, float, float] | None = None  # CPU's time / the device's: of the medians, smallest, largest


class SelftestResult(NamedTuple):
    """The result of a selftest."""

    versions: dict[str, str]
    checks: list[DeviceCheck]
    skipped: list[str]


def machine_versions() -> dict[str, str]:
    """Versions that a failure report should contain."""
    by_package = {"dubnb": VERSION, "Python": platform.python_version(), "machine": platform.machine()}
    for package in ("numpy", "numba", "numba-cuda"):
        try:
            by_package[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            by_package[package] = "not installed"
    return by_package | {"GPU": cuda.why_not() or _gpu()}


def _gpu() -> str:
    from numba import cuda as driver

    from dubnb.cuda._launch import SIMULATED

    if SIMULATED:
        return "simulated"
    device = driver.get_current_device()
    name = device.name.decode() if isinstance(device.name, bytes) else device.name
    return f"{name}, compute capability {'.'.join(map(str, device.compute_capability))}"


def run(device: str, largest: str, seed: int = 0, say: Callable[[str], None] = print) -> SelftestResult:
    """All checks on the CPU and, where `device` is not "cpu" and there is one, on the GPU.

    The smallest size comes first and compiles everything; it is not timed.
    """
    missing = cuda.why_not() if device != "cpu" else "device='cpu' was asked for"
    names = list(SIZES)[: list(SIZES).index(largest) + 1]
    checks = []
    for number, size in enumerate(names):
        data = random_log(*SIZES[size], seed)
        if missing is None:
            say(f"{size}: samples")
            checks.append(_same_samples(data, size, seed))
        for what, (method, params) in CASES.items():
            say(f"{size}: {what}")
            checks += _check_fits(
                what, size, data, make(method, epochs=EPOCHS, seed=seed, **params), missing, number > 0
            )
    return SelftestResult(machine_versions(), checks, [] if missing is None else [f"everything on a GPU: {missing}"])


def random_log(n_users: int, n_items: int, n_pairs: int, seed: int) -> Partition:
    """Random pairs with labels of low rank, so that there is something to learn."""
    random = generator(seed, "selftest", n_users, n_items)
    pairs = random.choice(n_users * n_items, n_pairs + n_pairs // 4, replace=False)
    users, items = np.divmod(pairs, n_items)
    p, q = random.standard_normal((n_users, 3)), random.standard_normal((n_items, 3))
    labels = ((p[users] * q[items]).sum(axis=1) + random.standard_normal(len(pairs)) > 0).astype(float)
    columns = users, items, labels, np.ones(len(pairs))
    ends = np.array([0, n_pairs, n_pairs + n_pairs // 8, n_pairs + n_pairs // 5, len(pairs)])
    parts = zip(("S_c", "S_t", "S_va", "S_te"), ends, ends[1:], strict=False)
    return Partition({name: tuple(c[start:stop] for c in columns) for name, start, stop in parts}, (n_users, n_items))


def _same_samples(data: Partition, size: str, seed: int) -> DeviceCheck:
    """Compare two epochs of drawn and shuffled samples with the CPU's, exactly."""
    from dubnb.cuda.device import device_scorer
    from dubnb.cuda.streams import DeviceStreams

    terms: list[Term] = [term_c(data), term_d(data, 1.0)]
    ours, theirs = EpochStreams(terms, seed, "selftest"), DeviceStreams(terms, seed, "selftest", device_scorer)
    wrong = 0
    for epoch in (1, 2):
        on_host = [column.copy_to_host() for column in theirs.draw(epoch)]  # type: ignore[attr-defined]
        wrong += sum(int(np.sum(own != other)) for own, other in zip(ours.draw(epoch), on_host, strict=True))
    return DeviceCheck(
        "samples", size, "cuda", wrong == 0, f"{wrong} numbers of {10 * len(ours.shuffled.users)} differ"
    )


def _check_fits(
    what: str, size: str, data: Partition, method: Method, missing: str | None, timed: bool
) -> Iterator[DeviceCheck]:
    """Fit a method twice on the CPU and twice on the GPU, and compare."""
    first, second = (_fitted(method, data, "cpu") for _ in range(2))
    same = _same_bits(first, second)
    ms = _epochs_ms(first, second) if timed else None
    yield DeviceCheck(
        what, size, "cpu", same, "the same bits twice" if same else "other bits the second time", _median(ms)
    )
    if missing is not None:
        return
    on_cuda, again = (_fitted(method, data, "cuda") for _ in range(2))
    users, items = (np.arange(4096) * step % count for step, count in ((7, data.n_users), (11, data.n_items)))
    scores = [model.weights_.score_pairs(users, items).astype(float) for model in (first, on_cuda)]
    apart, same = float(np.abs(scores[0] - scores[1]).max() / scores[0].std()), _same_bits(on_cuda, again)
    detail = f"scores {apart:.1e} std apart, {'the same' if same else 'OTHER'} bits twice"
    on_gpu = _epochs_ms(on_cuda, again) if timed else None
    ratio = None
    if ms is not None and on_gpu is not None:
        length = min(len(ms), len(on_gpu))
        each = ms[:length] / on_gpu[:length]
        ratio = float(np.median(ms) / np.median(on_gpu)), float(each.min()), float(each.max())
    yield DeviceCheck(what, size, "cuda", same and apart <= TOLERANCE, detail, _median(on_gpu), ratio)


def _fitted(method: Method, data: Partition, device: str) -> Method:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # models of a few epochs are poor
        return make(method.name, **(method.get_params() | {"device": device})).fit(data)


def _same_bits(first: Method, second: Method) -> bool:
    arrays = first.weights_.arrays(), second.weights_.arrays()
    return all(arrays[0][name].tobytes() == arrays[1][name].tobytes() for name in arrays[0])


def _epochs_ms(*models: Method) -> np.ndarray:
    """Milliseconds of each epoch of the last stage; the minimum over the models."""
    last = [model.history_[model.history_["stage"] == model.history_["stage"].iloc[-1]] for model in models]
    length = min(map(len, last))
    return 1e3 * np.min([rows["seconds"].to_numpy()[:length] for rows in last], axis=0)


def _median(ms: np.ndarray | None) -> float | None:
    return None if ms is None else float(np.median(ms))
