"""The order of the house: imports point one way, down the table of CONTRIBUTING, and a name means one thing."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dubnb"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def is_for_types(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imports_of(tree, module):
    """{imported module of dubnb: a line}: at the top and inside functions, but not what only a type checker reads."""
    found, todo = {}, [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import in line {node.lineno}"
            # `from package import name`: the module package.name if there is one, else something inside the package
            inside = (f"{node.module}.{alias.name}" for alias in node.names)
            names = [name if name in MODULES else node.module for name in inside]
        else:
            names = []
        found |= {name: node.lineno for name in names if name in MODULES and name != module}
        todo += [] if is_for_types(node) else ast.iter_child_nodes(node)
    return found


def graph():
    return {module: imports_of(ast.parse(path.read_text()), module) for module, path in MODULES.items()}


GRAPH = graph()


def cycle_through(start, edges):
    """A shortest cycle through a module, or None."""
    paths = [[start]]
    seen = set()
    while paths:
        path = paths.pop(0)
        for following in edges[path[-1]]:
            if following == start:
                return [*path, start]
            if following not in seen:
                seen.add(following)
                paths.append([*path, following])
    return None


@pytest.mark.parametrize("module", MODULES)
def test_no_cycle(module):
    cycle = cycle_through(module, GRAPH)
    assert cycle is None, " -> ".join(cycle)


def layers():
    """[names] of each row of CONTRIBUTING's table: modules, and packages with a slash."""
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| module |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    return [[name.rstrip("/") for name in re.findall(r"`([^`]+)`", row)] for row in rows]


LAYERS = layers()
ENTRANCES = {"dubnb", "dubnb.__main__", "dubnb._version"}  # lazy public names and `python -m dubnb` may use everything


def layer_of(module):
    parts = module.split(".")
    for number, names in enumerate(LAYERS):
        if parts[1] in names:
            return number
    return None


@pytest.mark.parametrize("module", sorted(set(MODULES) - ENTRANCES))
def test_imports_point_down_the_table(module):
    own = layer_of(module)
    assert own is not None, f"{module} stands in no row of CONTRIBUTING's table"
    for imported, line in GRAPH[module].items():
        if imported not in ENTRANCES:
            below = layer_of(imported)
            assert below is not None and below <= own, (
                f"{module}:{line} imports {imported}, which is further down the table"
            )


# Names that several modules have by agreement: a file of cli/ has NAME, run and so on, a backbone train_batch, ...
AGREED = {"add_options", "notes", "run", "load", "main", "design", "findings", "score_batch", "train_batch"}


def test_no_two_functions_or_classes_share_a_name():
    found = {}
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("__"):
                found.setdefault(node.name, set()).add(module)
    shared = {name: sorted(modules) for name, modules in found.items() if len(modules) > 1 and name not in AGREED}
    assert not shared


OWN = Path(__file__).name
WORDS = r"\blest\b|whoever|\bbut for\b|for ever\b|tells? the more|is no finite|\bas told\b"


def test_the_tree_is_free_of_mannered_words():
    """The words of STYLE's table that a search can find; this file, which lists them, is left out."""
    paths = [*ROOT.glob("*.*")]  # of the root alone: an environment may stand in a folder of it
    for folder in ("dubnb", "tests", "bench", "docs", "examples"):
        paths += (ROOT / folder).rglob("*.*")
    found = []
    for path in paths:
        if path.suffix in (".py", ".md", ".cfg", ".toml", ".css") and path.name != OWN and "site" not in path.parts:
            found += [(path.name, line) for line in path.read_text().splitlines() if re.search(WORDS, line, re.I)]
    assert not found


def test_the_table_names_what_is_there():
    there = {module.split(".")[1] for module in MODULES if "." in module} - {"__main__", "_version"}
    assert {name for names in LAYERS for name in names} == there
