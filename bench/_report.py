"""What `python -m bench` writes: results.json, results.md, and plots where matplotlib is installed."""

import importlib.util
import json
import os
import platform
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
    lines += ["CPU time, one thread, contenders in turn; ratio of minima, spread over rounds."]
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
    """Time per epoch against rank; time per sample against size."""
    ranks = [(int(r["title"].split()[-1]), r["min"]) for r in records if r["title"].startswith("MF epoch over ranks")]
    sizes = [
        (int(r["contender"].split()[0].replace(",", "")), r["min"])
        for r in records
        if r["title"].startswith("MF epoch per sample against size") and "min" in r
    ]
    _plot(directory / "rank.png", ranks, "rank", "ms per epoch", log=False)
    _plot(directory / "growth.png", sizes, "samples", "us per sample", log=True)


def _plot(path, points, x, y, log):
    if len(points) < 2:
        return
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=(5, 3.2), layout="constrained")).subplots()
    axes.plot(*zip(*points, strict=True), marker="o")
    axes.set(xlabel=x, ylabel=y, xscale="log" if log else "linear")
    axes.set_ylim(bottom=0)
    figure.savefig(path, dpi=120)
