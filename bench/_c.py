"""The MF epoch in C, compiled on the spot and called through ctypes on the same arrays as an MFTrainer."""

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

# The flags that say in gcc's words what dubnb's FASTMATH says in LLVM's: fused multiply-adds and sums in any order, but
# NaN and inf keep their meaning.
FLAGS = [
    "-O3",
    "-march=native",
    "-std=c11",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fassociative-math",
    "-fno-signed-zeros",
]
SOURCE = Path(__file__).with_name("mf_epoch.c")
POINTER = ctypes.c_void_p


class _Slots(ctypes.Structure):
    _fields_ = [(name, POINTER) for name in ("of_row", "row", "of_sample", "count")]


class _Model(ctypes.Structure):
    _fields_ = [
        *((name, POINTER) for name in ("users", "items", "b0")),
        ("user_slots", _Slots),
        ("item_slots", _Slots),
        *((name, POINTER) for name in ("starts", "order", "gradient", "item_gradients", "decay")),
        *((name, ctypes.c_int64) for name in ("width", "rank", "batch_size")),
        ("lr", ctypes.c_double),
    ]


def compiler():
    """The C compiler's name, or None."""
    return next((name for name in ("gcc", "cc", "clang") if shutil.which(name)), None)


def compiled():
    """The function `mf_epoch`."""
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "mf_epoch.so"
        subprocess.run([compiler(), *FLAGS, "-shared", "-fPIC", SOURCE, "-o", library, "-lm"], check=True)
        function = ctypes.CDLL(str(library)).mf_epoch
    function.restype = ctypes.c_double
    function.argtypes = [POINTER] * 5 + [ctypes.c_int64] * 2
    return function


class Trainer:
    """Epochs in C on the tables of `trainer`, a dubnb MFTrainer of its own."""

    def __init__(self, trainer, lr, lam):
        self.trainer, self.function, self.step = trainer, compiled(), 0
        tables, work = trainer.tables, trainer.work
        self.decay = (np.arange(trainer.width) < trainer.rank) * np.float32(lam)
        slots = [
            _Slots(*(_address(getattr(side, name)) for name, _ in _Slots._fields_))
            for side in (work.user_slots, work.item_slots)
        ]
        scratch = (work.starts, work.order, work.user_gradient, work.item_gradients, self.decay)
        numbers = (trainer.width, trainer.rank, trainer.batch_size, lr)
        self.model = _Model(*map(_address, tables), *slots, *map(_address, scratch), *numbers)

    def epoch(self, stream):
        """Train on every sample of `stream`; returns the sum of weighted losses."""
        columns = [_address(column) for column in stream[:4]]
        total = self.function(ctypes.addressof(self.model), *columns, len(stream.users), self.step)
        self.step += -(-len(stream.users) // self.trainer.batch_size)
        return total


def _address(array):
    return array.ctypes.data
