"""Backbones: the models M_c and M_t, each with its score kernel and its fused epoch kernel."""

from dubnb.backbones.mf import MF
from dubnb.backbones.ncf import NCF

BACKBONES = {"mf": MF, "ncf": NCF}
