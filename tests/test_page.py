"""The report page: self-contained, escaped, and the same bytes for the same numbers."""

import base64
import functools
import hashlib
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from dubnb.report import figures, page
from dubnb.report.page import Figure, Finding, Findings, Gallery, Label, Link, Page, Section, Table, Value

ATTACK = "<script>window.attacked = 1</script>\"'><img src=x onerror=window.attacked=1>"
VOID = {"meta", "link", "img", "br"}
GROUPS = {0: "the paper's", 2: "ours"}


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
    """A small page with everything a page can have."""
    systems = ("base", "unif", "dub", name)
    table = Table(
        "Results of " + name,
        ["system", "AUC", "note"],
        [
            [Label(s, "of " + s), Value(v, None, "±0.0010", v == 0.75), s]
            for s, v in zip(systems, (0.7, 0.55, 0.75, None), strict=True)
        ],
        "A note on " + name,
        (1,),
    )
    grouped = Table("", ["system", "AUC"], [["base", 0.1], ["dub", 0.3], ["dub-x binary", 0.2]], "", (), GROUPS)
    dots, curves, pairs, small = drawings()
    drawn = [Figure("Dots", dots, "Caption of " + name), Figure("Curves", curves, "c")]
    linked = Link("Another " + name, "other.html", True, [name], small)
    sections = [
        Section("Results", [table, grouped, linked]),
        Section("Figures", [Gallery(drawn), Figure("", pairs, "b")]),
        Section(
            "Findings", [Findings("Of " + name, [Finding("NO", "bad", name + "?", "because " + name, "p 0.01")], "n")]
        ),
    ]
    return Page(
        "dubnb · RQ0",
        "A title for " + name,
        "What?",
        ["dub is best."],
        [("data", name), ("budget", "smoke")],
        sections,
        f"dubnb reproduce rq1 --biased {name}",
        {"dubnb": "0"},
        ("Beware of " + name,),
        unfinished,
    )


class Reader(HTMLParser):
    """Collects tags and attributes, and checks that elements close in order."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.open, self.ids = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def read():
    reader = Reader()
    reader.feed(page.render(example_page()))
    return reader


def test_it_is_well_formed(read):
    assert read.open == []
    ids = [value for _, name, value in read.attributes if name == "id"]
    assert len(ids) == len(set(ids)) and ids  # figures do not share theirs


def test_nothing_comes_from_elsewhere(read):
    assert read.tags.count("script") == 1 and "img" not in read.tags
    links = [value for _, name, value in read.attributes if name in ("src", "href", "xlink:href", "action", "data")]
    assert all(value.startswith(("#", "data:,")) or value == "other.html" for value in links)
    text = page.render(example_page(name="x"))
    assert "http:" not in text and "https:" not in text and "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    policy = next(value for _, name, value in read.attributes if name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none'")


def test_the_policy_allows_this_style_and_this_script_by_hash_and_no_other(read):
    text = page.render(example_page())
    policy = next(value for _, name, value in read.attributes if name == "content" and "default-src" in value)
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy
    assert "unsafe" not in policy


def test_style_attributes_become_rules_of_the_hashed_style(read):
    assert not [value for _, name, value in read.attributes if name == "style"]
    text = page.render(example_page())
    numbers = {value for _, name, value in read.attributes if name == "data-style"}
    rules = dict(re.findall(r'\[data-style="(\d+)"\]\[data-style\]\[data-style\] \{ (.*?) \}', text))
    assert rules.keys() == numbers and {"--heat:1.000", "background:var(--dub)"} <= set(rules.values())
    assert any("var(--dub, #0b5fc7)" in rule for rule in rules.values())  # the figures' own
    assert re.search(r'<td class="best" data-heat data-style="\d+" data-value="0.75">', text)


def test_names_are_escaped(read):
    assert not any(name.startswith("on") for _, name, _ in read.attributes)
    text = page.render(example_page())
    assert ATTACK not in text and text.count("&lt;script&gt;window.attacked") >= 7


def test_control_characters_are_shown_not_obeyed():
    text = page.render(example_page(name="a\x1b[2Jb\u202ec"))
    assert "\x1b" not in text and "\u202e" not in text and "a\\x1b[2Jb\\u202ec" in text


def test_an_unfinished_report_says_so_first():
    text = page.render(example_page("3 of 16 systems are done"))
    assert text.index("UNFINISHED") < text.index("dub is best")
    assert "3 of 16 systems are done" in text and "UNFINISHED" in page.markdown(example_page("x"))
    assert "UNFINISHED" not in page.render(example_page())


def test_numbers_sort_by_value_and_what_is_missing_is_empty():
    text = page.render(example_page(name="x"))
    keys = re.findall(r'<td[^>]*data-value="([^"]*)"', text)
    assert keys[1::3][:4] == ["0.7", "0.55", "0.75", ""]
    assert 'class="best"' in re.search(r'<td[^>]*data-value="0.75"', text).group()


def test_the_largest_is_warmest():
    heat = page._heat(Table("", ["a", "b"], [["x", 1.0], ["y", Value(3.0)], ["z", Value(None)]], "", (1,)))
    assert heat == {(0, 1): 0.0, (1, 1): 1.0}


def test_markdown_has_the_numbers_and_obeys_no_name():
    text = page.markdown(example_page(name="a|b*c_<i>"))
    assert "**0.7500** ±0.0010" in text and "dub is best." in text and "Beware" in text
    assert "a\\|b\\*c\\_&lt;i>" in text and "<i>" not in text.replace("&lt;i>", "").split("```")[0]
    assert "![Dots](figures/t-dots.svg)" in text and "<svg" not in text


def test_no_name_makes_itself_bold_in_a_table():
    rows = [[Label("a⟦b⟧", "⟦c⟧"), "⟦d⟧"], ["e", "f"]]
    text = page._markdown_table(Table("", ["⟦s⟧", "v"], rows, "", (), {1: "⟦g⟧"}))
    assert text.count("**") == 2 and "⟦" not in text and "⟧" not in text
    assert text.count("u27e6") == text.count("u27e7") == 5


def test_a_whole_page_in_markdown():
    rows = [[Label("dub"), Value(0.5, None, "±0.1", True)], ["base", Value(0.25)], ["unif", Value(0.125, "an eighth")]]
    table = Table("Scores", ["system", "AUC"], rows, "A note.")
    own = Page(
        "k", "T", "Q?", ["A."], [("data", "d"), ("seeds", "3")], [Section("S", [table])], "dubnb x", {"dubnb": "1"}
    )
    assert page.markdown(own._replace(versions={"dubnb": "1", "numpy": "2"}, warnings=("W",))) == (
        "# T\n\nQ?\n\n**A.**\n\n- Warning: W\n\n- data: d\n- seeds: 3\n\n## S\n\n### Scores\n\n"
        "| system | AUC |\n| :-- | --: |\n| dub | **0.5000** ±0.1 |\n| base | 0.2500 |\n| unif | an eighth |\n\n"
        "A note.\n\n## Make this again\n\n```\ndubnb x\n```\n\ndubnb 1, numpy 2\n"
    )
    assert page.render(own).endswith("</body></html>\n")


def test_a_picture_links_to_a_page_that_is_there():
    drawing = figures.dots("t-link", {"dub": np.array([0.1, 0.2])}, "AUC")
    assert "<svg" not in page._link(Link("x", None, True, [], drawing))
    assert "thumbnail" not in page._link(Link("x", "x.html", True, []))
    assert '<a class="thumbnail" href="x.html"><svg' in page._link(Link("x", "x.html", True, [], drawing))


def test_a_column_of_numbers_with_one_text_is_text():
    assert page._text_columns(Table("", ["a", "b", "c"], [[1, "x", None], [2, 3, Value(1.0)]], "")) == [
        False,
        True,
        False,
    ]
    shown = page._table(Table("", ["a", "b"], [[1, "x"], [float("inf"), 3]], ""))
    assert re.findall('data-value="(.*?)"', shown) == ["1", "x", "", "3"]


def test_same_numbers_same_bytes():
    first = page.render(example_page())
    drawings.cache_clear()
    assert page.render(example_page()) == first


def test_colours_follow_the_page():
    svg = figures.dots("t", {"dub": np.array([0.1, 0.2])}, "AUC").svg
    assert "var(--dub, #0b5fc7)" in svg and "var(--ink" in svg and svg.startswith("<svg viewBox=")
    left = svg
    for name, stand_in in figures.COLOURS.items():
        left = left.replace(f"var(--{name}, {stand_in})", "")
    assert not re.findall(r"#[0-9a-f]{6}", left)  # no colour that a dark page could not change
    assert "font-family: inherit" in svg and "DejaVu" not in svg


def test_figures_stand_alone_too():
    from xml.etree import ElementTree

    drawing = figures.dots("t-x", {"dub-x binary": np.array([0.1, 0.2])}, "AUC < 1")
    text = figures.standalone(drawing)
    root = ElementTree.fromstring(text.encode())
    assert drawing.name == "t-x" and root.tag.endswith("svg") and float(root.get("width")) > 100
    assert "var(" not in text and "inherit" not in text


def test_labels_are_moved_apart_as_little_as_needed():
    assert figures.spread_out(np.array([0.1, 0.5, 0.9]), 0.1) == pytest.approx([0.1, 0.5, 0.9])
    moved = figures.spread_out(np.array([0.5, 0.5, 0.5, 0.95]), 0.1)
    assert moved == pytest.approx([0.4, 0.5, 0.6, 0.95])
    places = np.sort(np.linspace(0, 1, 9) ** 3)
    assert (np.diff(figures.spread_out(places, 0.06)) >= 0.06 - 1e-12).all()
    assert len(figures.spread_out(np.empty(0), 0.1)) == 0


def test_every_system_has_a_colour_in_both_themes():
    from dubnb.experiments.systems import BEYOND, GROUPS, PAPER

    style = page.asset("page.css")
    for name in (*GROUPS[PAPER], *GROUPS[BEYOND]):
        assert style.count(f"--{figures.variable(name)}:") == 3  # light, dark, print
    assert figures.variable("someone's own") is None
    light = style[: style.index("@media")]
    assert all(f"--{name}: {colour}" in light for name, colour in figures.COLOURS.items())


def test_rows_stand_in_their_groups():
    text = page.render(example_page())
    table = text[text.index("the paper&#x27;s") :]
    first, second = table.split("</tbody><tbody>")[:2]
    assert "dub" in first and "dub-x" not in first and "ours" in second and "dub-x binary" in second
    assert text.count('scope="rowgroup"') == 2 and text.count("<tbody>") == 3
    assert "**ours**" in page.markdown(example_page())


def test_remarks_stand_below_names():
    assert "dub<small>of dub</small>" in page.render(example_page())
    assert "dub (of dub)" in page.markdown(example_page())


def test_an_index_shows_findings_and_pictures():
    text = page.render(example_page(name="x"))
    article = text[text.index("<article") : text.index("</article>")]
    assert 'href="other.html"' in article and "<p>x</p>" in article and "<svg" in article and "COMPLETE" in article
    assert article.index("<p>x</p>") < article.index("COMPLETE")
    bare = page._link(Link("x", None, False, []))
    assert "<svg" not in bare and "<a " not in bare and "UNFINISHED" in bare


def test_pairs_are_sorted_by_the_first_and_leave_out_what_is_missing():
    svg = figures.pairs("t", {"base": (0.2, 0.1), "dub": (0.4, np.nan), "ips": (np.nan, 0.5)}, ("a", "b"), "share").svg
    places = [svg.index(f">{name}<") for name in ("dub", "base", "ips")]
    assert places == sorted(places)


def test_heat_is_a_value_s_place_between_the_least_and_the_most():
    rows = [["x", 1.0], ["y", 4.0], ["z", 2.0], ["all", True], ["inf", float("inf")], ["nan", float("nan")]]
    heat = page._heat(Table("", ["a", "b"], rows, "", (1,)))
    assert heat == {(0, 1): 0.0, (1, 1): 1.0, (2, 1): pytest.approx(1 / 3)}
    assert page._heat(Table("", ["a", "b"], [["x", 2.0], ["y", 2.0]], "", (1,))) == {}
    shown = page._table(Table("", ["a", "b"], rows, "", (1,)))
    assert shown.count("data-heat") == 3 and 'style="--heat:0.333"' in shown


def test_tables_say_what_is_text_and_what_is_long_or_wide():
    long = "x" * 51
    table = page._table(Table("", ["a", "b"], [[long, 1.0], [long[1:], 2]], ""))
    assert table.count(' class="text long"') == 1 and table.count('aria-sort="none" class="text"') == 1
    assert "<h3>" not in table and 'class="note"' not in table
    for width, is_wide in ((10, False), (11, True)):
        shown = page._table(Table("", [str(k) for k in range(width)], [[1.0] * width], ""))
        assert ('class="sortable wide"' in shown) == is_wide
    assert page._text_columns(Table("", ["a", "b"], [], "")) == [True, True]


def test_colours_stand_beside_systems_in_the_first_column_only():
    shown = page._table(Table("", ["system", "rival"], [["dub", "base"]], ""))
    assert shown.count('class="dot"') == 1 and 'class="dot" style="background:var(--dub)"' in shown


def test_warnings_are_counted_and_sorting_is_told_where_there_is_a_table():
    assert "<summary>1 warning</summary>" in page._warnings(["a"])
    assert "<summary>2 warnings</summary>" in page._warnings(["a", "b"]) and page._warnings([]) == ""
    full = example_page()
    assert "Tables can be sorted" in page._bottom(full)
    bare = Page("k", "t", "q", [], [], [Section("s", [Link("x", None, False, [])])], "c", {})
    assert "Tables can be sorted" not in page._bottom(bare)
    assert "UNFINISHED" not in page._top(bare) and 'class="answer"' not in page._top(bare)


def test_markdown_tells_what_is_finished_and_where_groups_begin():
    text = page.markdown(example_page(name="x"))
    assert "- Another x: complete" in text and "UNFINISHED" not in text
    assert page._markdown_part(Link("y", None, False, []))[0] == "- y: UNFINISHED"
    assert "**UNFINISHED.** half" in page.markdown(example_page("half", name="x"))
    lines = page._markdown_table(Table("", ["s", "v"], [["a", 1.0], ["b", 2.0]], "", (), {0: "one", 1: "two"})).split(
        "\n"
    )
    assert [line.split("|")[1].strip() for line in lines] == ["s", ":--", "a", "**two**", "b"]  # none above the first
    wide = page._markdown_table(Table("", ["s", "v", "w"], [["a", 1.0, 2.0]] * 2, "", (), {1: "two"}))
    assert [line.count("|") for line in lines + wide.split("\n")] == [3] * 5 + [4] * 5  # as many cells in every row
    assert page._with_remark(Value(0.5, None, "3 seeds")) == "0.5000 (3 seeds)"
    assert page._with_remark(Value(0.5)) == "0.5000" and page._with_remark(Label("a")) == "a"


def test_findings_show_verdict_question_and_reason_without_a_click():
    made = Findings(
        "T", [Finding("NO", "bad", "Why?", "Because.", "p 0.01"), Finding("YES", "good", "So?", "So.")], "Note."
    )
    text = page.render(example_page(name="x")._replace(sections=[Section("S", [made])]))
    assert (
        text.index('<b class="verdict bad">NO</b>') < text.index("Why?") < text.index("p 0.01") < text.index("Because.")
    )
    assert text.count("<details") == 1 and "Note." in text  # the warnings alone can be folded
    lines = page.markdown(example_page(name="x")._replace(sections=[Section("S", [made])])).splitlines()
    assert "- **NO** Why? Because. (p 0.01)" in lines and "- **YES** So? So." in lines and "Note." in lines
