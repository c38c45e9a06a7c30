"""One short file per method: a recipe of bound terms. METHODS lists them by name."""

from dubnb import _check
from dubnb.methods.autodebias import AutoDebias
from dubnb.methods.base import Base
from dubnb.methods.bridge import Bridge
from dubnb.methods.cause import CausE
from dubnb.methods.combine import Combine
from dubnb.methods.dub import DUB
from dubnb.methods.dub_x import DubX
from dubnb.methods.ips import IPS
from dubnb.methods.unif import Unif

METHODS = {method.name: method for method in (Base, Unif, Combine, IPS, CausE, Bridge, AutoDebias, DUB, DubX)}


def make(name, **params):
    """A method by its name, such as make("dub", backbone="ncf")."""
    cls = METHODS[_check.choice("method", name, tuple(METHODS))]
    return cls().set_params(**params)
