"""Models in notebooks: a table instead of a line, and the course of training as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dubnb import _html, metrics
from dubnb._check import InputError

if TYPE_CHECKING:
    import pandas as pd

DASHES = ("-", "--", ":", "-.")


def model_html(model: Any, history: pd.DataFrame | None) -> str:
    """What it is, and once fitted: on what, for how long, how well."""
    rows = [("parameters", repr(model))]
    if history is None:
        rows.append(("state", "not fitted: call fit(data)"))
    else:
        monitor = f"va_{model.params_['monitor']}"
        users, items = len(model.user_ids_), len(model.item_ids_)
        rows += [
            ("trained on", f"{model.data_['name']}: {users:,} users x {items:,} items"),
            ("epochs", ", ".join(f"{s} {n}" for s, n in history.groupby("stage", sort=False)["epoch"].count().items())),
            (f"best {monitor.removeprefix('va_')} on S_va", f"{history[monitor].max():.4f}"),
        ]
        chosen = {k: v for k, v in model.params_.items() if model.get_params()[k] is None and v is not None}
        rows.append(
            ("by default", ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in chosen.items()))
        )
    return _html.table(model.name, rows)


def plot_history(history: pd.DataFrame, ax: Any = None) -> Any:
    """The validation metric over the epochs of all stages, one after the other; the best epoch of each is marked."""
    if ax is None:
        try:
            import matplotlib.pyplot as plt
        except ImportError:
            raise InputError("plot_history needs matplotlib: install the extra 'report'") from None
        ax = plt.subplots(figsize=(6, 3.5), layout="constrained")[1]
    monitor = next(name for name in history if name.startswith("va_"))
    start = 0
    for number, (stage, rows) in enumerate(history.groupby("stage", sort=False)):
        epochs = start + rows["epoch"].to_numpy()
        (line,) = ax.plot(epochs, rows[monitor], DASHES[number % len(DASHES)], label=stage)
        if rows[monitor].notna().any():
            best = int(rows[monitor].to_numpy().argmax())
            ax.plot(epochs[best], rows[monitor].iloc[best], "o", color=line.get_color())
        start = int(epochs[-1])
    ax.set_xlabel("epoch")
    ax.set_ylabel(f"{metrics.label(monitor.removeprefix('va_'))} on S_va")
    if len(history["stage"].unique()) > 1:
        ax.legend(frameon=False)
    return ax
