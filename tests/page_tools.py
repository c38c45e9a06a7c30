"""An example page with everything that a page can have, for tests."""

import functools

import numpy as np

from dubnb.report import figures
from dubnb.report.page import CheckedQuestion, Checklist, Figure, Gallery, Label, Link, Page, Section, Table, Value

ATTACK = "<script>window.attacked = 1</script>\"'><img src=x onerror=window.attacked=1>"


@functools.cache
def drawings():
    """Drawn once: they take longer than everything else on the page."""
    seeds = {"base": np.array([0.7, 0.71]), "dub": np.array([0.74, 0.76])}
    return (
        figures.dots("t-dots", seeds, "AUC", {"base": 0.72}),
        figures.curves("t-curves", [1, 2], {"dub": ([0.1, 0.2], [0.01, 0.01])}, ("x", "y")),
        figures.pairs("t-pairs", {"base": (0.2, np.nan), "dub": (0.4, 0.3)}, ("hit", "shown"), "share", line=0.3),
        figures.dots("t-small", seeds, "nDCG"),
    )


def example_page(unfinished=None, name=ATTACK):
    values = zip(("base", "unif", "dub", name), (0.7, 0.55, 0.75, None), strict=True)
    rows = [[Label(s, "of " + s), Value(v, None, "±0.0010", v == 0.75), s] for s, v in values]
    table = Table("Results of " + name, ["system", "AUC", "note"], rows, "A note on " + name)
    groups = {0: "the paper's", 2: "ours"}
    grouped = Table("", ["system", "AUC"], [["base", 0.1], ["dub", 0.3], ["dub-x binary", 0.2]], "", groups)
    dots, curves, pairs, small = drawings()
    drawn = [Figure("Dots", dots, "Caption of " + name), Figure("Curves", curves, "c")]
    questions = [CheckedQuestion("NO", "bad", name + "?", "because " + name, "p 0.01")]
    sections = [
        Section("Results", [table, grouped, Link("Another " + name, "other.html", True, [name], small)]),
        Section("Figures", [Gallery(drawn), Figure("", pairs, "b")]),
        Section("Questions", [Checklist("Of " + name, questions, "n")]),
    ]
    facts, command = [("data", name), ("budget", "smoke")], f"dubnb reproduce rq1 --biased {name}"
    about = "dubnb · RQ0", "A title for " + name, "What?", ["dub is best."]
    return Page(*about, facts, sections, command, ("Beware of " + name,), unfinished)
