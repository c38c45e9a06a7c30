"""Backbones: the models M_c and M_t, each with its score kernel and its fused epoch kernel."""

from dubnb.backbones.mf import MF
from dubnb.backbones.ncf import NCF
from dubnb.backbones.protocol import Scorer, Trainer, Weights

BACKBONES: dict[str, type[Weights]] = {"mf": MF, "ncf": NCF}

__all__ = ["BACKBONES", "MF", "NCF", "Scorer", "Trainer", "Weights"]
