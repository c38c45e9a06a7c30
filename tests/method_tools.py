"""What tests of methods share: quick parameters, every method with its backbones, a digest of weights."""

import hashlib
import warnings

from dubnb.methods import METHODS

QUICK = {"rank": 3, "epochs": 2, "patience": 2, "lr": 0.02}
FITTABLE = [(name, backbone) for name, method in METHODS.items() for backbone in method.backbones()]


def quietly(function, *args, **kwargs):
    """The call's result, without its UserWarnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return function(*args, **kwargs)


def digest(model):
    """A hash of all weights of a fitted model."""
    found = hashlib.sha256()
    for weights in (model.weights_, model.teacher_):
        for name, array in weights.arrays().items() if weights is not None else ():
            found.update(name.encode() + array.tobytes())
    return found.hexdigest()
