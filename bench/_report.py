"""What `python -m bench` writes: results.json, results.md, and plots where matplotlib is installed."""

import importlib.util
import json
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench._timing import cells

ISA = ("avx512f", "avx2", "fma", "asimd", "neon")
PACKAGES = ("numpy", "numba", "torch", "scikit-learn")


def machine():
    """CPU, cores, vector instructions and versions: without them a figure means little."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    isa = " ".join(name for name in ISA if features.get(name)) or "unknown"
    facts = {"cpu": f"{_cpu()} ({llvm.get_host_cpu_name()})", "cores": os.cpu_count(), "isa": isa}
    return facts | {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def _cpu():
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def _version(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def write(directory, machine, records, quick):
    """All records so far; called after every part, so that an interrupted run keeps what it has."""
    directory.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine, "quick": quick, "records": records}
    (directory / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    (directory / "results.md").write_text(markdown(machine, records, quick))
    if importlib.util.find_spec("matplotlib"):
        plots(directory, records)


def markdown(machine, records, quick):
    """One table of all comparisons, then single figures, then what was skipped."""
    lines = ["Machine: " + ", ".join(f"{name} {value}" for name, value in machine.items()) + "."]
    lines += ["CPU time on one thread unless said; contenders in turn; ratio of minima, spread over rounds."]
    lines += ["**A quick run: sizes are a tenth, the figures mean little.**"] if quick else []
    lines += ["", "| what | contender | min | max | ratio | spread | goal |", "|---|---|---:|---:|---:|---:|---|"]
    timed = [record for record in records if "min" in record]
    lines += [f"| {record['title']}, {record['unit']} | " + " | ".join(cells(record)) + " |" for record in timed]
    lines += [""] + [_line(record) for record in records if "value" in record]
    skipped = [record for record in records if record["title"] == "skipped"]
    lines += [f"- skipped: {record['contender']} ({record['why']})" for record in skipped]
    return "\n".join(lines) + "\n"


def _line(record):
    verdict = f" (goal {record['goal']}: {'reached' if record['met'] else 'NOT reached'})" if record["goal"] else ""
    return f"- {record['title']}: {record['contender']} {record['value']:.3g} {record['unit']}{verdict}"


def plots(directory, records):
    """Time per epoch against rank, ours and torch's; time per sample against size."""
    epochs, growth = {}, {}
    for record in records:
        if found := re.fullmatch(
            r"MF epoch(?: over ranks)?, rank (\d+)(?:, batch 1024, against torch)?", record["title"]
        ):
            epochs.setdefault(record["contender"], {})[int(found[1])] = record["min"]
        if record["title"].startswith("MF epoch per sample against size"):
            size = int(record["contender"].split()[0].replace(",", ""))
            growth.setdefault("dubnb", {})[size] = record["min"]
    _plot(directory / "rank.png", epochs, "rank", "CPU ms per epoch, batch 1,024", xscale="log", yscale="log")
    _plot(directory / "growth.png", growth, "samples", "CPU us per sample", xscale="log")


def _plot(path, series, x, y, **scales):
    """A line per contender, {contender: {x: y}}; nothing where no line would have two points."""
    if max(map(len, series.values()), default=0) < 2:
        return
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=(5, 3.2), layout="constrained")).subplots()
    for name, points in series.items():
        axes.plot(*zip(*sorted(points.items()), strict=True), marker="o", label=name)
    axes.set(xlabel=x, ylabel=y, **scales)
    axes.grid(alpha=0.3)
    if "yscale" not in scales:
        axes.set_ylim(0, 1.2 * max(value for points in series.values() for value in points.values()))
    if len(series) > 1:
        axes.legend()
    figure.savefig(path, dpi=120)
