"""Build the documentation as a searchable HTML site that needs no server and no network.

    pip install '.[docs]' && python -m docs.build        # then open docs/site/index.html

Sphinx with MyST and Furo was chosen over mkdocs-material because it installs 90 MB instead of 140 and its search works
on pages that are opened as files, without a server.
"""

import re
import shutil
import sys
import tempfile
from pathlib import Path

from docs import api_page

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "docs" / "site"
# The navigation. A page that is not named here is listed under "More".
GROUPS = {
    "Start": [
        "docs/tutorial",
        "docs/logs",
        "docs/labels",
        "docs/splits",
        "docs/which-method",
        "docs/methods",
        "docs/faq",
    ],
    "Random traffic": ["docs/collecting", "docs/eligible", "docs/audit", "docs/plan"],
    "Decide": [
        "docs/compare",
        "docs/arena",
        "docs/biases",
        "docs/evaluation",
        "docs/intervals",
        "docs/calibration",
        "docs/manager",
        "docs/ab-tests",
    ],
    "Ship": ["docs/shipping", "docs/deployment", "docs/online", "docs/side-features"],
    "Go deeper": [
        "docs/results",
        "docs/theory",
        "docs/ncf",
        "docs/cluster",
        "docs/large-logs",
        "docs/cuda",
        "docs/tried",
        "docs/tried-choice",
        "docs/tried-ncf",
    ],
    "Reference": ["docs/api", "docs/datasets", "bench/README", "CONTRIBUTING", "CHANGELOG"],
    "Records": [
        "bench/records/theory",
        "bench/records/speed",
        "bench/records/robustness",
        "bench/records/mutants",
    ],
}
COPIED = ("docs", "bench/README.md", "bench/figures", "bench/records", "CONTRIBUTING.md", "CHANGELOG.md")
LINKED = ("CITATION.cff", "LICENSE")  # files that pages link to
SETTINGS = {
    "project": "dubnb",
    "extensions": ["myst_parser"],
    "myst_enable_extensions": ["deflist"],
    "myst_heading_anchors": 4,  # links such as tried.md#ncf
    "highlight_language": "none",
    "html_theme": "furo",
    "html_title": "dubnb",
    "html_static_path": ["docs/static"],
    "html_css_files": ["site.css"],
    "html_copy_source": False,
    "html_show_sphinx": False,
    "html_show_copyright": False,
}
# Search for "dub-x" and "liked@10" as one word where the site has that word, else for its parts.
SPLIT_QUERY = r"""
var splitQuery = (query) =>
  (query.match(/[\p{Letter}\p{Number}_]+(?:[-@][\p{Letter}\p{Number}_]+)*/gu) || []).flatMap((word) =>
    [Search._index.terms, Search._index.titleterms].some((known) => Object.hasOwn(known, word.toLowerCase()))
      ? [word]
      : word.split(/[-@]/),
  );
"""


def gather(folder):
    """Copy the sources into a folder: README as the front page, with the navigation and the API reference."""
    for name in COPIED + LINKED:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("site", "*.py", "__pycache__", "api.md"))
        else:
            shutil.copy(source, target)
    for path in (folder / "bench" / "records").glob("*.md"):
        if not path.read_text(encoding="utf-8").startswith("# "):
            path.unlink()  # a table of another page, not a page
    (folder / "docs" / "api.md").write_text(api_page.markdown(), encoding="utf-8")
    front = (ROOT / "README.md").read_text(encoding="utf-8")
    (folder / "index.md").write_text(front + navigation(folder), encoding="utf-8")


def navigation(folder):
    """The groups of pages as Sphinx reads them."""
    listed = [page for pages in GROUPS.values() for page in pages]
    found = sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.md"))
    groups = {**GROUPS, "More": [page for page in found if page not in listed]}
    lines = []
    for name, pages in groups.items():
        if pages:
            lines += ["", "```{toctree}", ":hidden:", f":caption: {name}", "", *pages, "```"]
    return "\n".join(lines) + "\n"


def index_compounds():
    """Let the search index hold words such as dub-x whole, beside their parts."""
    from sphinx import search

    class Compounds(search.SearchEnglish):
        js_splitter_code = SPLIT_QUERY

        def split(self, text):
            return super().split(text) + re.findall(r"\w+(?:[-@]\w+)+", text)

    search.languages["en"] = Compounds


def build(out=SITE):
    """Build the site in a directory; a broken link is an error."""
    from sphinx.application import Sphinx

    index_compounds()
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary, "source")
        gather(source)
        doctrees = Path(temporary, "doctrees")
        app = Sphinx(source, None, out, doctrees, "html", SETTINGS, status=None, warningiserror=True, freshenv=True)
        app.build(force_all=True)
        return app.statuscode


if __name__ == "__main__":
    try:
        code = build()
    except ImportError as error:
        sys.exit(f"{error}: install the extra first, pip install '.[docs]'")
    print(SITE / "index.html")
    sys.exit(code)
