"""The leaderboard for a paper: LaTeX tables, and the BibTeX entries of the systems in them."""

from __future__ import annotations

import functools
import importlib.resources
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from dubnb.backbones import BACKBONES

SPECIAL = {
    "\\": r"\textbackslash{}",
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}
LOGS, SYSTEMS = 3, 45  # so many logs and systems of one table fit a page of the class `article`
HEADER_WIDTH = 12  # characters of a line of a column's header
ALWAYS = "arena"  # the keyword of entries that every leaderboard needs


def latex_text(value: object) -> str:
    """Text with LaTeX's special characters escaped, on one line."""
    return "".join(SPECIAL.get(sign, sign) for sign in " ".join(str(value).split()))


@functools.cache
def _bibtex() -> dict[str, tuple[str, frozenset[str]]]:
    """{key: (entry, methods and systems that it is cited for)} of references.bib."""
    text = importlib.resources.files("dubnb.report").joinpath("references.bib").read_text(encoding="utf-8")
    found = {}
    for entry in re.split(r"\n(?=@)", text.strip()):
        key, words = re.match(r"@\w+\{([^,]+),", entry), re.search(r"keywords = \{([^}]*)\}", entry)
        assert key is not None and words is not None
        shown = re.sub(r",\n  keywords = \{[^}]*\}", "", entry).strip()
        found[key.group(1)] = shown, frozenset(word.strip() for word in words.group(1).split(","))
    return found


def citations(*names: str) -> list[str]:
    """The keys of the entries to cite for a system, by the names of its method and of itself."""
    return [key for key, (_, own) in _bibtex().items() if own & set(names)]


def bibtex_entries(names: Collection[str]) -> str:
    """BibTeX entries of methods and systems, of the paper and of this software, and of the test over data sets."""
    wanted = {ALWAYS, "dub", "dub-x", *names}
    return "\n\n".join(entry for entry, own in _bibtex().values() if own & wanted) + "\n"


class TexColumn(NamedTuple):
    """A column of a table: its header and its cells, both as LaTeX."""

    header: str
    cells: Sequence[str]


def latex_table(rows: Sequence[Mapping[str, Any]], logs: Sequence[str], metric: str, remark: str = "") -> str:
    """Tables (booktabs) with a row per system, the best first; the best of each log is bold. Captions have `remark`.

    One log: its values, and their gains over popularity as intervals where these are known. Several logs: the values
    first, then the gains, in tables of at most LOGS logs. A leaderboard longer than SYSTEMS goes on in another table.
    """
    system = TexColumn("system", [_system(row) for row in rows])
    backbone = TexColumn("backbone", [latex_text(row["backbone"]) for row in rows])
    first = [system, backbone] if set(BACKBONES) <= set(backbone.cells) else [system]
    rank = TexColumn(_header_cell("mean rank"), [_number_cell(row["mean_rank"], 1) for row in rows])
    costs = [
        TexColumn("CPU s", [_number_cell(row["training_cpu_seconds"], 2) for row in rows]),
        TexColumn(_header_cell("settings tried"), [str(max(row["candidates"] or [0]) or "--") for row in rows]),
    ]
    values = [TexColumn(_header_cell(log), _value_cells(rows, log)) for log in logs]
    with_gains = [log for log in logs if any(row["gains"][log] for row in rows)]
    gains = [TexColumn(_header_cell(log), [_interval_cell(row["gains"][log]) for row in rows]) for log in with_gains]

    shown = latex_text(metric)
    about = f"Mean {shown} over seeds on randomized test feedback ($S_{{te}}$); the best in bold."
    about += " CPU s: of one training." + (f" {latex_text(remark)}" if remark else "")
    of_gains = rf"95\,\% intervals over users of the gain over popularity in {shown}"
    of_gains += " (a ratio less 1)." if metric == "liked@10" else "."
    alone = of_gains + (f" {latex_text(remark)}" if remark else "")  # in a table of its own
    lines = ["% needs \\usepackage{booktabs}; the references are in references.bib"]
    if len(logs) == 1:
        beside = [TexColumn(_header_cell("gain over popularity"), column.cells) for column in gains]
        caption = f"{about} Gain over popularity: {of_gains}" if gains else about
        lines += _tables("leaderboard", caption, first, [[*values, *beside, *costs]])
    else:
        cut = LOGS + 1 - len(first)
        blocks = [[rank, *values[:cut], *costs], *_column_blocks(values[cut:])]
        lines += _tables("leaderboard", about, first, blocks)
        if gains:
            lines += _tables("leaderboard-gains", alone[0].upper() + alone[1:], first, _column_blocks(gains))
    return "\n".join(lines) + "\n"


def _column_blocks(columns: Sequence[TexColumn]) -> list[Sequence[TexColumn]]:
    return [columns[k : k + LOGS] for k in range(0, len(columns), LOGS)]


def _tables(label: str, caption: str, first: Sequence[TexColumn], blocks: Sequence[Sequence[TexColumn]]) -> list[str]:
    """A table for each block of columns and each SYSTEMS rows; the later ones say that they continue the first."""
    n_rows, lines, again = len(first[0].cells), [], rf"Table~\ref{{tab:{label}}}, continued."
    parts = [(block, start) for block in blocks for start in range(0, n_rows, SYSTEMS)]
    for number, (block, start) in enumerate(parts):
        columns = [*first, *block]
        lines += [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{again if number else caption}}}",
            rf"\label{{tab:{label}{f'-{number + 1}' if number else ''}}}",
            r"\vspace{1ex}",
            r"\footnotesize",
            r"\setlength{\tabcolsep}{4pt}",
            rf"\begin{{tabular}}{{{'l' * len(first)}{'r' * len(block)}}}",
            r"\toprule",
            " & ".join(column.header for column in columns) + r" \\",
            r"\midrule",
        ]
        for k in range(start, min(start + SYSTEMS, n_rows)):
            lines.append(" & ".join(column.cells[k] for column in columns) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return lines


def _system(row: Mapping[str, Any]) -> str:
    keys = citations(row["method"], row["system"])
    name = latex_text(row["system"]).replace(r"S\_t", "$S_t$")
    return name + (rf"~\cite{{{','.join(keys)}}}" if keys else "")


def _header_cell(text: str) -> str:
    """A header in short lines."""
    lines = textwrap.wrap(text, HEADER_WIDTH, break_long_words=False)
    text = r" \\ ".join(latex_text(line) for line in lines)
    return text if len(lines) < 2 else rf"\shortstack[r]{{{text}}}"


def _value_cells(rows: Sequence[Mapping[str, Any]], log: str) -> list[str]:
    values = [row["values"][log] for row in rows]
    best = max((value for value in values if value == value), default=None)
    return [rf"\textbf{{{value:.4f}}}" if value == best else _number_cell(value, 4) for value in values]


def _number_cell(value: float | None, digits: int) -> str:
    return "--" if value is None or value != value else f"{value:.{digits}f}"


def _interval_cell(gain: tuple[float, float, float] | None) -> str:
    return "--" if gain is None else f"${gain[1]:+.3f}$ to ${gain[2]:+.3f}$"
