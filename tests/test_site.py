"""The documentation site: every page is there, links resolve, search finds compound words, nothing is fetched."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = [
    pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="needs a checkout, not an installed package"),
    pytest.mark.needs_jit,  # the site is the same without the JIT
]
RESOURCES = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href", "object": "data"}


class Page(HTMLParser):
    """Ids, links and resources of one page."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.resources = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids.add(found.get("id"))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if RESOURCES.get(tag) in found:
            self.resources.append(found[RESOURCES[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package, reason="the extra is not installed: pip install '.[docs]'")
    from docs import build

    out = tmp_path_factory.mktemp("site")
    assert build.build(out) == 0, "Sphinx warned: see its output"
    return out


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def test_every_document_is_a_page_with_a_place_in_the_navigation(site, pages):
    sources = [
        *(ROOT / "docs").glob("*.md"),
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        ROOT / "bench" / "README.md",
    ]
    expected = {site / path.relative_to(ROOT).with_suffix(".html") for path in sources} | {site / "docs" / "api.html"}
    assert expected <= set(pages)
    reached = {(site / urldefrag(link).url).resolve() for link in pages[site / "index.html"].links}
    assert expected <= reached


def test_links_and_anchors_resolve(site, pages):
    for path, page in pages.items():
        for link in page.links + page.resources:
            if urlsplit(link).scheme:
                continue
            address, anchor = urldefrag(link)
            target = (path.parent / unquote(urlsplit(address).path)).resolve() if address else path
            assert target.is_file(), f"{path.relative_to(site)} links to {link}"
            if anchor and target in pages:
                assert unquote(anchor) in pages[target].ids, f"{path.relative_to(site)} links to {link}"


def test_nothing_is_loaded_from_elsewhere(site, pages):
    for path, page in pages.items():
        outside = [
            each for each in page.resources if urlsplit(each).scheme not in ("", "data") or each.startswith("//")
        ]
        assert not outside, f"{path.relative_to(site)} loads {outside}"
    for path in site.rglob("*.css"):
        assert not re.search(r"@import|url\(\s*[\"']?(https?:)?//", path.read_text(encoding="utf-8")), path.name
    for path in site.rglob("*.js"):
        assert not re.search(
            r"(fetch|import|open|importScripts)\(\s*[\"'`](\w+:)?//", path.read_text(encoding="utf-8")
        ), path.name


def test_search_finds_compound_words_and_their_parts(site):
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text[text.index("{") : text.rindex("}") + 1])

    def found(word):
        numbers = [index[kind].get(word, []) for kind in ("terms", "titleterms")]
        return {index["docnames"][number] for each in numbers for number in ([each] if isinstance(each, int) else each)}

    assert {"docs/which-method", "docs/api", "index"} <= found("dub-x") <= found("dub")
    assert "docs/deployment" in found("fold_in")
    assert "splitQuery" in (site / "_static" / "language_data.js").read_text(encoding="utf-8")
