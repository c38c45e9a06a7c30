"""Methods, one short file each. METHODS registers them by name; everything else in dubnb finds them there.

A registered method appears as `dubnb.ClassName`, in `make`, on the command line, in sweeps, in `compare` and in
`reproduce --systems`.
"""

import os
from typing import Any

from dubnb import _check
from dubnb.methods import _model_file
from dubnb.methods._method import Method
from dubnb.methods._serving import LoadedFile
from dubnb.methods.autodebias import AutoDebias
from dubnb.methods.base import Base, Combine, Popularity, PopularityT, Random, Unif
from dubnb.methods.bpr import BPR, PDA
from dubnb.methods.cause import CausE
from dubnb.methods.dib import DIB
from dubnb.methods.distil import Refine, Transfer, Weigh
from dubnb.methods.dr import DR, MRDR, StableDR
from dubnb.methods.dub import DUB, Bridge
from dubnb.methods.dub_i import DubI
from dubnb.methods.dub_x import DubX
from dubnb.methods.dub_xi import DubXI
from dubnb.methods.ease import EASE
from dubnb.methods.ials import IALS
from dubnb.methods.ips import IPS
from dubnb.methods.relmf import RelMF

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        Base,
        Unif,
        Combine,
        IPS,
        CausE,
        Bridge,
        AutoDebias,
        DUB,
        DubX,
        EASE,
        IALS,
        BPR,
        RelMF,
        DubI,
        DubXI,
        PDA,
        DR,
        MRDR,
        StableDR,
        DIB,
        Refine,
        Weigh,
        Transfer,
        Popularity,
        PopularityT,
        Random,
    )
}


def make(name: str, **params: Any) -> Method:
    """An unfitted method by its name.

    Parameters
    ----------
    name : str
        Such as "dub-x", "dub" or "base"; an unknown name raises an InputError that lists all of them.
    **params
        The parameters of the method's constructor.

    Examples
    --------
    >>> import dubnb
    >>> dubnb.make("dub", backbone="ncf", rank=20)
    DUB(backbone='ncf', rank=20)
    """
    return METHODS[_check.choice("method", name, tuple(METHODS))]().set_params(**params)


def load(path: str | os.PathLike[str]) -> Method:
    """Load a fitted model from a file that `save` wrote; a damaged or foreign file raises an InputError."""
    file = LoadedFile.of(path)  # before it is read
    model = _model_file.load(path, METHODS)
    model.file_ = file
    return model
