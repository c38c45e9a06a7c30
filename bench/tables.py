"""Tables of README and docs, made from the records of the runs that they show.

    python -m bench.tables          # write them anew: README.md, docs/*.md

A table stands between `<!-- record: NAME -->` and `<!-- end -->`; its record is bench/records/NAME.json (whose module
makes the table) or NAME.md (a table as its command printed it). A test compares the tables with what this would write.
"""

import json
import re
from pathlib import Path

from bench import (
    arena,
    biases,
    calibrated,
    choice,
    cluster,
    defaults,
    exploration,
    labels,
    ladder,
    lead,
    ncf_settings,
    neighbours,
    public_sizes,
    refit,
    rival_defaults,
    scale,
    shares,
    stopping,
    test_size,
    trained,
)

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "bench" / "records"
BLOCK = re.compile(r"<!-- record: (\S+) -->\n.*?<!-- end -->", re.DOTALL)
LADDERS = ("simulated", "coat", "yahoo-like")


def record(name):
    """What a run kept."""
    return json.loads((RECORDS / f"{name}.json").read_text())


def coverage():
    """Every interval that the product prints, with its lowest coverage over all simulated designs of coverage-*.json.

    Rows of one kind are one row here: the losses of `bound`, the questions of `audit`. The records list all rows.
    """
    kinds = {}
    for path in sorted(RECORDS.glob("coverage-*.json")):
        for row in json.loads(path.read_text()):
            name = re.sub(r", loss \w+", "", re.sub(r"question '\w+'", "each question", row["interval"]))
            kinds.setdefault((name, row["nominal"], row["command"]), []).append(row)
    lines = ["| interval | simulated logs | nominal | lowest coverage | made by |", "|---|---:|---:|---:|---|"]
    for (name, nominal, command), rows in kinds.items():
        logs, lowest = sum(row["logs"] for row in rows), min(row["coverage"] for row in rows)
        numbers = f"{logs:,} | {100 * nominal:.3g} % | {100 * lowest:.1f} %"
        cell = name.replace("|", r"\|")
        lines.append(f"| {cell} | {numbers} | `{command}` |")
    return "\n".join(lines)


MAKERS = {
    "coverage": coverage,
    "arena": lambda: arena.table(record("arena")),
    "biases": lambda: biases.table(record("biases")),
    "biases-default": lambda: biases.default_table(record("biases")),
    "public-sizes": lambda: public_sizes.table(record("public-sizes")),
    "choice": lambda: choice.table(record("choice")),
    "cutoffs": lambda: choice.cutoffs_table(record("cutoffs")),
    "neighbours": lambda: neighbours.table(record("neighbours")),
    "heads": lambda: choice.heads_table(record("heads")),
    "exploration": lambda: exploration.table(record("exploration")),
    "lead": lambda: lead.table(record("lead")),
    "defaults": lambda: defaults.table(record("defaults")),
    "headline": lambda: defaults.headline(record("defaults")),
    "defaults-ncf": lambda: defaults.table(record("defaults-ncf"), "ncf"),
    "ncf-settings": lambda: ncf_settings.table(record("ncf-settings")),
    "labels": lambda: labels.table(record("labels")),
    "calibrated": lambda: calibrated.table(record("calibrated")),
    "rival-defaults": lambda: rival_defaults.table(record("rival-defaults")),
    "refit": lambda: refit.table(record("refit")),
    "shares": lambda: shares.table(record("shares")),
    "test-size": lambda: test_size.table(record("test-size")),
    "stopping": lambda: stopping.table(record("stopping")),
    "scale": lambda: scale.table(record("scale")),
    "scale-files": lambda: scale.table(record("scale-files")),
    "scale-fit": lambda: scale.fit_table(record("scale-fit")),
    "scale-disk": lambda: scale.table(record("scale-disk")),
    "cluster": lambda: cluster.table(record("cluster")),
    "autodebias-ladder": lambda: trained.table(record("autodebias-ladder")),
    "tuned": lambda: ladder.over_defaults({log: record(f"ladder-{log}") for log in LADDERS}, record("defaults")),
    **{f"ladder-{log}": lambda log=log: ladder.table(record(f"ladder-{log}")) for log in LADDERS},
}


def documents():
    """The files that may hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def table(name):
    """A record as Markdown."""
    if name in MAKERS:
        return MAKERS[name]()
    return (RECORDS / f"{name}.md").read_text().rstrip()


def renewed(text):
    """A document with every table made from its record."""
    return BLOCK.sub(lambda found: f"<!-- record: {found[1]} -->\n{table(found[1])}\n<!-- end -->", text)


def main():
    for path in documents():
        path.write_text(renewed(path.read_text()))


if __name__ == "__main__":
    main()
