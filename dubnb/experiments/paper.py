"""The tables of the paper (Liu et al., TOIS 2023), to print beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

METRICS = ("auc", "ndcg", "p@5", "p@10", "r@5", "r@10")  # the columns of its tables

Published = dict[str, dict[str, float]]  # system -> metric -> number


def _table(rows: Mapping[str, tuple[float, ...]]) -> Published:
    return {name: dict(zip(METRICS, values, strict=True)) for name, values in rows.items()}


# Yahoo! R3, unbiased test: the paper's comparison and, below, its ablation
YAHOO_R3 = {
    "mf": _table(
        {
            "base": (0.7282, 0.0434, 0.0059, 0.0051, 0.0207, 0.0332),
            "unif": (0.5625, 0.0291, 0.0049, 0.0041, 0.0135, 0.0245),
            "combine": (0.7357, 0.0489, 0.0073, 0.0061, 0.0243, 0.0401),
            "ips": (0.7300, 0.0407, 0.0052, 0.0054, 0.0171, 0.0344),
            "autodebias": (0.7502, 0.0691, 0.0119, 0.0104, 0.0403, 0.0683),
            "cause": (0.7285, 0.0445, 0.0059, 0.0058, 0.0192, 0.0372),
            "bridge": (0.7376, 0.0557, 0.0099, 0.0076, 0.0308, 0.0478),
            "dub": (0.7578, 0.0727, 0.0128, 0.0112, 0.0438, 0.0770),
        }
    ),
    "ncf": _table(
        {
            "base": (0.7245, 0.0279, 0.0029, 0.0031, 0.0089, 0.0199),
            "unif": (0.6050, 0.0275, 0.0043, 0.0037, 0.0113, 0.0204),
            "combine": (0.7268, 0.0327, 0.0032, 0.0033, 0.0092, 0.0189),
            "ips": (0.7273, 0.0304, 0.0036, 0.0031, 0.0111, 0.0210),
            "autodebias": (0.7140, 0.0385, 0.0052, 0.0047, 0.0188, 0.0333),
            "cause": (0.7284, 0.0287, 0.0029, 0.0033, 0.0089, 0.0210),
            "bridge": (0.7367, 0.0439, 0.0056, 0.0056, 0.0192, 0.0371),
            "dub": (0.7421, 0.0491, 0.0051, 0.0058, 0.0164, 0.0390),
        }
    ),
}
YAHOO_R3_ABLATION = {
    "mf": _table(
        {
            "dub": (0.7578, 0.0727, 0.0128, 0.0112, 0.0438, 0.0770),
            "dub without e": (0.7500, 0.0702, 0.0113, 0.0108, 0.0377, 0.0744),
            "dub without a and e": (0.7376, 0.0557, 0.0099, 0.0076, 0.0308, 0.0478),
        }
    ),
    "ncf": _table(
        {
            "dub": (0.7421, 0.0491, 0.0051, 0.0058, 0.0164, 0.0390),
            "dub without e": (0.7386, 0.0438, 0.0050, 0.0051, 0.0165, 0.0320),
            "dub without a and e": (0.7367, 0.0439, 0.0056, 0.0056, 0.0192, 0.0371),
        }
    ),
}


def beside(data: Partition, tables: Mapping[str, Published]) -> Mapping[str, Published]:
    """`tables` where `data` are the paper's Yahoo! R3 in the paper's split, else none: numbers of other data, or of
    another split of the same, do not belong side by side."""
    is_papers = data.name == "yahoo-r3" and (data.n_users, data.n_items) == (15_400, 1_000)
    return tables if is_papers else {}
