"""The leaderboard for a paper: a LaTeX table, and the BibTeX entries of the systems in it."""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

SPECIAL = {
    "\\": r"\textbackslash{}",
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}
ALWAYS = "arena"  # the keyword of entries that every leaderboard needs


def latex_text(value: object) -> str:
    """Text with LaTeX's special characters escaped, on one line."""
    return "".join(SPECIAL.get(sign, sign) for sign in " ".join(str(value).split()))


@functools.cache
def _bibtex() -> dict[str, tuple[str, frozenset[str]]]:
    """{key: (entry, methods that it is cited for)} of references.bib."""
    text = importlib.resources.files("dubnb.report").joinpath("references.bib").read_text(encoding="utf-8")
    found = {}
    for entry in re.split(r"\n(?=@)", text.strip()):
        key, words = re.match(r"@\w+\{([^,]+),", entry), re.search(r"keywords = \{([^}]*)\}", entry)
        assert key is not None and words is not None
        shown = re.sub(r",\n  keywords = \{[^}]*\}", "", entry).strip()
        found[key.group(1)] = shown, frozenset(word.strip() for word in words.group(1).split(","))
    return found


def citations(method: str) -> list[str]:
    """The keys of the entries to cite for a method."""
    return [key for key, (_, methods) in _bibtex().items() if method in methods]


def bibtex_entries(methods: Collection[str]) -> str:
    """BibTeX entries of some methods, of their paper and of this software, and of the test over data sets."""
    wanted = {ALWAYS, "dub", "dub-x", *methods}
    return "\n\n".join(entry for entry, own in _bibtex().values() if own & wanted) + "\n"


def latex_table(rows: Sequence[Mapping[str, Any]], logs: Sequence[str], metric: str) -> str:
    """A table (booktabs) with a row per system, the best first; the best of each log is bold.

    Below a value stands the interval of its gain over popularity, where it is known.
    """
    several = len(logs) > 1
    best = {
        log: max((row["values"][log] for row in rows if row["values"][log] == row["values"][log]), default=None)
        for log in logs
    }

    def number(row: Mapping[str, Any], log: str) -> str:
        value = row["values"][log]
        text = f"{value:.4f}" if value == value else "--"
        text = rf"\textbf{{{text}}}" if value == best[log] else text
        if row["gains"][log] is None:
            return text
        _, low, high = row["gains"][log]
        return rf"\shortstack[r]{{{text}\\{{\scriptsize ${low:+.3f}$ to ${high:+.3f}$}}}}"

    names = ["system", *(["mean rank"] if several else []), *logs, "CPU s", "candidates"]
    lines = [
        "% needs \\usepackage{booktabs}; the references are in references.bib",
        rf"\begin{{tabular}}{{l{'r' * (len(names) - 1)}}}",
        r"\toprule",
        " & ".join(map(latex_text, names)) + r" \\",
        r"\midrule",
    ]
    for row in rows:
        keys = citations(row["method"])
        cite = rf"~\cite{{{','.join(keys)}}}" if keys else ""
        cells = [latex_text(row["system"]) + cite]
        cells += ["--" if row["mean_rank"] is None else f"{row['mean_rank']:.1f}"] if several else []
        seconds, candidates = row["training_cpu_seconds"], row["candidates"]
        cells += [number(row, log) for log in logs]
        cells += ["--" if seconds is None else f"{seconds:.2f}", "--" if not candidates else str(max(candidates))]
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines.append(f"% {metric} on randomized test feedback (S_te), mean over seeds; best in bold")
    if any(gain for row in rows for gain in row["gains"].values()):
        lines.append("% below: 95 % interval over users of the gain over popularity (a ratio less 1 for liked@10)")
    return "\n".join(lines) + "\n"
