"""One short file per method: a recipe of bound terms. METHODS lists them by name."""

import os
from typing import Any

from dubnb import _check
from dubnb.methods import _model_file
from dubnb.methods._method import Method
from dubnb.methods.autodebias import AutoDebias
from dubnb.methods.base import Base
from dubnb.methods.bridge import Bridge
from dubnb.methods.cause import CausE
from dubnb.methods.combine import Combine
from dubnb.methods.dub import DUB
from dubnb.methods.dub_x import DubX
from dubnb.methods.ips import IPS
from dubnb.methods.popularity import Popularity
from dubnb.methods.popularity_t import PopularityT
from dubnb.methods.random import Random
from dubnb.methods.unif import Unif

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (Base, Unif, Combine, IPS, CausE, Bridge, AutoDebias, DUB, DubX, Popularity, PopularityT, Random)
}


def make(name: str, **params: Any) -> Method:
    """A method by its name, such as make("dub", backbone="ncf")."""
    return METHODS[_check.choice("method", name, tuple(METHODS))]().set_params(**params)


def load(path: str | os.PathLike[str]) -> Method:
    """A fitted model from a file that `save` wrote; whatever is wrong with the file is an InputError."""
    return _model_file.load(path, METHODS)
