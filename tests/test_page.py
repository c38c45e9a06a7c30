"""The report page: self-contained, escaped, and the same bytes for the same numbers."""

import base64
import hashlib
import itertools
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from dubnb.experiments.systems import BEYOND, GROUPS, PAPER, RIVALS
from dubnb.methods import METHODS
from dubnb.report import figures
from dubnb.report.page import (
    CheckedQuestion,
    Checklist,
    Label,
    Link,
    Page,
    Section,
    Table,
    Value,
    render,
    render_markdown,
    stylesheet,
)
from tests.page_tools import ATTACK, drawings, example_page

VOID = {"meta", "link", "img", "br"}


def page_of(*parts, **options):
    return Page("k", "T", "Q?", [], [], [Section("S", parts)], "dubnb x")._replace(**options)


class Reader(HTMLParser):
    """Collects tags and attributes, and checks that elements close in order."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.open = [], [], []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
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
    reader.feed(render(example_page()))
    return reader


def test_it_is_well_formed(read):
    assert read.open == []
    ids = [value for _, name, value in read.attributes if name == "id"]
    assert len(ids) == len(set(ids)) and ids  # figures do not share theirs


def test_it_loads_nothing_and_runs_no_script(read):
    assert "script" not in read.tags and "img" not in read.tags
    links = [value for _, name, value in read.attributes if name in ("src", "href", "xlink:href", "action", "data")]
    assert all(value.startswith(("#", "data:,")) or value == "other.html" for value in links)
    text = render(example_page(name="x"))
    assert "http:" not in text and "https:" not in text and "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))


def test_the_policy_allows_this_style_by_its_hash_and_nothing_else(read):
    policy = next(value for _, name, value in read.attributes if name == "content" and "default-src" in value)
    (content,) = re.findall("<style>(.*?)</style>", render(example_page()), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:"


def test_style_attributes_become_rules_of_the_hashed_style(read):
    assert not [value for _, name, value in read.attributes if name == "style"]
    numbers = {value for _, name, value in read.attributes if name == "data-style"}
    found = re.findall(r'\[data-style="(\d+)"\]\[data-style\]\[data-style\] \{ (.*?) \}', render(example_page()))
    assert dict(found).keys() == numbers and "background:var(--dub, #0b5fc7)" in dict(found).values()


def test_names_are_escaped(read):
    assert not any(name.startswith("on") for _, name, _ in read.attributes)
    text = render(example_page())
    assert ATTACK not in text and text.count("&lt;script&gt;window.attacked") >= 7
    text = render(example_page(name="a\x1b[2Jb\u202ec"))
    assert "\x1b" not in text and "\u202e" not in text and "a\\x1b[2Jb\\u202ec" in text


def test_an_unfinished_report_says_so_first():
    text = render(example_page("3 of 16 systems are done"))
    assert text.index("UNFINISHED") < text.index("3 of 16 systems are done") < text.index("dub is best")
    assert "**UNFINISHED.** half" in render_markdown(example_page("half"))
    assert "UNFINISHED" not in render(example_page()) + render_markdown(example_page())


def test_markdown_has_the_numbers_and_escapes_names():
    text = render_markdown(example_page(name="a|b*c_<i>"))
    assert "**0.7500** ±0.0010" in text and "dub is best." in text and "Beware" in text
    assert "a\\|b\\*c\\_&lt;i>" in text and "<i>" not in text.replace("&lt;i>", "").split("```")[0]
    assert "![Dots](figures/t-dots.svg)" in text and "<svg" not in text
    rows = [[Label("a⟦b⟧", "⟦c⟧"), "⟦d⟧"], ["e", "f"]]
    text = render_markdown(page_of(Table("", ["⟦s⟧", "v"], rows, "", {1: "⟦g⟧"})))
    assert text.count("**") == 2 and "⟦" not in text and text.count("u27e6") == text.count("u27e7") == 5


def test_links_have_a_figure_if_their_page_exists():
    drawing = drawings()[0]
    assert "<svg" not in render(page_of(Link("x", None, True, [], drawing)))
    assert '<a class="thumbnail"' not in render(page_of(Link("x", "x.html", True, [])))
    assert '<a class="thumbnail" href="x.html"><svg' in render(page_of(Link("x", "x.html", True, [], drawing)))
    text = render(page_of(Link("x", "o.html", True, ["Found."]), Link("y", None, False, [])))
    assert text.index('href="o.html"') < text.index("Found.") < text.index(">COMPLETE<") < text.index(">UNFINISHED<")
    markdown = render_markdown(page_of(Link("x", None, True, ["Found."]), Link("y", None, False, [])))
    assert "- x: complete\n  Found." in markdown and "- y: UNFINISHED" in markdown


def test_same_numbers_same_bytes():
    first = render(example_page())
    drawings.cache_clear()
    assert render(example_page()) == first


def test_colours_follow_the_page():
    svg = figures.dots("t", {"dub": np.array([0.1, 0.2])}, "AUC").svg
    assert "var(--dub, #0b5fc7)" in svg and "var(--ink" in svg and svg.startswith("<svg viewBox=")
    left = svg
    for name, stand_in in figures.COLOURS.items():
        left = left.replace(f"var(--{name}, {stand_in})", "")
    assert not re.findall(r"#[0-9a-f]{6}", left)  # no colour that a dark page could not change
    assert "font-family: inherit" in svg and "DejaVu" not in svg


def test_figures_stand_alone_too():
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


def test_every_system_has_its_own_colour(monkeypatch):
    colours = {name: figures.colour(name) for group in (PAPER, BEYOND, RIVALS) for name in GROUPS[group]}
    different = {name: own for name, own in colours.items() if name != "dub-x"} | {"grey": figures.COLOURS["soft"]}
    codes = [np.array([int(own[k : k + 2], 16) for k in (1, 3, 5)]) for own in different.values()]
    assert min(np.linalg.norm(one - other) for one, other in itertools.combinations(codes, 2)) > 25
    dark = stylesheet()[stylesheet().index("prefers-color-scheme: dark") :]
    assert all(f"--{name}: #" in dark for name in figures.SYSTEM_COLOURS)
    assert figures.colour("dub-x") == figures.colour("dub-x binary")
    grey = figures.colour("someone's own")
    assert figures.colour("popularity") == figures.colour("without e") == grey
    assert figures.css_colour("popularity") is None
    for name in ("newcomer", "another"):
        monkeypatch.setitem(METHODS, name, METHODS["base"])
    made = figures.colour("newcomer")
    assert re.fullmatch("#[0-9a-f]{6}", made) and len({made, figures.colour("another"), grey, *colours.values()}) > 14
    text = render(page_of(Table("", ["system"], [["newcomer"]])))
    assert f"background:{made}" in text


def test_rows_stand_in_their_groups():
    text = render(example_page())
    first, second = text[text.index("the paper&#x27;s") :].split("</tbody><tbody>")[:2]
    assert "dub" in first and "dub-x" not in first and "ours" in second and "dub-x binary" in second
    assert text.count('scope="rowgroup"') == 2 and text.count("<tbody>") == 3
    table = Table("", ["s", "v", "w"], [["a", 1.0, 2], ["b", 2.0, 3]], "", {0: "one", 1: "two"})
    lines = [line for line in render_markdown(page_of(table)).splitlines() if line.startswith("|")]
    assert [line.split("|")[1].strip() for line in lines] == ["s", ":--", "a", "**two**", "b"]  # none above the first
    assert {line.count("|") for line in lines} == {4}  # as many cells in every row


def test_remarks_and_spreads_stand_below_names_and_numbers():
    table = Table("", ["s", "v"], [[Label("dub", "of dub"), Value(0.5, None, "3 seeds")], [Label("a"), Value(0.25)]])
    assert "dub<small>of dub</small>" in render(page_of(table)) and "0.5000<small>3 seeds</small>" in render(
        page_of(table)
    )
    text = render_markdown(page_of(table))
    assert "| dub (of dub) | 0.5000 (3 seeds) |" in text and "| a | 0.2500 |" in text


def test_pairs_are_sorted_by_the_first_and_leave_out_what_is_missing():
    svg = figures.pairs("t", {"base": (0.2, 0.1), "dub": (0.4, np.nan), "ips": (np.nan, 0.5)}, ("a", "b"), "share").svg
    places = [svg.index(f">{name}<") for name in ("dub", "base", "ips")]
    assert places == sorted(places)


def test_columns_with_a_text_are_text_and_long_or_wide_ones_are_set_apart():
    long = "x" * 51
    text = render(page_of(Table("", ["a", "b"], [[long, 1.0], [long[1:], Value(None)]])))
    assert text.count('class="text long"') == 1 and text.count('<th scope="col" class="text">') == 1
    assert "<td>1.0000</td>" in text and "<td>-</td>" in text
    assert "<h3>" not in text and 'class="note"' not in text
    text = render(page_of(Table("", ["a", "b"], [[1, "x"], [2, 3]])))
    assert '<th scope="col">a</th><th scope="col" class="text">b</th>' in text
    for width, is_wide in ((10, False), (11, True)):
        text = render(page_of(Table("", [str(k) for k in range(width)], [[1.0] * width])))
        assert ('<table class="wide">' in text) == is_wide
    text = render(page_of(Table("", ["system", "rival"], [["dub", "base"]])))
    assert text.count('class="dot"') == 1  # of the first column only


def test_a_checklist_shows_verdict_question_and_reason_without_a_click():
    first = CheckedQuestion("NO", "bad", "Why?", "Because.", "p 0.01")
    made = Checklist("T", [first, CheckedQuestion("YES", "good", "So?", "So.")], "Note.")
    text = render(page_of(made))
    order = ['<b class="verdict bad">NO</b>', "Why?", "p 0.01", "Because.", "Note."]
    assert [text.index(each) for each in order] == sorted(text.index(each) for each in order)
    assert "<details" not in text
    lines = render_markdown(page_of(made)).splitlines()
    assert "- **NO** Why? Because. (p 0.01)" in lines and "- **YES** So? So." in lines and "Note." in lines
