"""Mutants made from the syntax tree, for tests/mutations.py: signs, comparisons, numbers off by one, arguments swapped,
terms dropped, sets renamed.

Which tests run follows from the names that they use (`nearest_tests`). Modules of LEFT_OUT are left out, and so are
messages, plots, type annotations and docstrings, which tests need not read word by word. Nor is made what changes
nothing, or what a test could only copy:

- arguments of functions that are symmetric in them (SYMMETRIC);
- what is prefetched, whether and how far ahead: rows arrive sooner or later, with the same values (UNSEEN);
- numbers that a module names in capitals, and values of grids (`wide=`, `paper=`, `even=`, `near=`): sizes of blocks,
  limits, steps of a search. They are choices, which benches and docs defend; a test would repeat the number;
- whether such a number itself is within its limit: that is the number moved by one;
- whether a computed number is within a tolerance, a literal below 1e-6, or equal to it: none is equal;
- the default of a parameter `seed`, any of which is as good, and of scikit-learn's `deep`, which nothing reads;
- `strict=True` of a zip, which claims as an assert does that both sides are as long; asserts are left out as well;
- users for items, or items for users, of which only the number is asked, as in `len(S_c.users)` (PARALLEL), or in
  `len(users)` where a function takes pairs (OF_PAIRS);
- users for items, or items for users, of whose rows the width is asked: `users.shape[1]`;
- `copy=False` and `zeros=False`: a copy holds the same, and so does room that is filled next;
- `timeout=`, how long to wait for what comes or does not, and `refresh=False` of a progress bar, which is drawn soon;
- what stands under `if JIT_ENABLED`: mutants are tested without the JIT;
- functions, classes and variables of SAME_RESULT, each with its reason.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Set
from pathlib import Path

from tests.mutations import ROOT, Mutation

LEFT_OUT = {  # module, or the beginning of its path -> why no mutants are made of it
    "dubnb/_jit.py": "needs the JIT: mutants are tested without it",
    "dubnb/_kernel_": "the same",
    "dubnb/cuda/": "needs CUDA's simulator or compiler",
    "dubnb/background.py": "work in threads: the same values sooner or later",
    "dubnb/report/figures.py": "drawings, which nobody measures",
    "dubnb/report/plots.py": "the same",
    "dubnb/sweeps/cluster.py": "each mutant would wait for a cluster's time limits",
    "dubnb/sweeps/local.py": "the same: workers that never answer",
}
# Tests of sources, documents, kernels on a GPU and copies of the package.
OF_THE_REPOSITORY = ("test_contributing.py", "test_cuda.py", "test_cuda_simulated.py", "test_docs.py")
OF_THE_REPOSITORY += ("test_imports.py", "test_mutations.py", "test_site.py", "test_types.py")
SETS = {"S_c": "S_t", "S_t": "S_c", "S_va": "S_te", "S_te": "S_va", "M_c": "M_t", "M_t": "M_c"}
SETS |= {"users": "items", "items": "users", "user": "item", "item": "user"}
COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
COMPARISONS |= {ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is"}
SIGNS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}
SYMMETRIC = ("min", "max", "minimum", "maximum", "array_equal", "isclose", "allclose", "logaddexp", "hypot", "gcd")
SYMMETRIC += ("intersect1d", "union1d", "logical_and", "logical_or")
SYMMETRIC += ("student_t", "paired_t", "dot", "vdot", "all_finite")  # two-sided p-values; inner products of vectors
SYMMETRIC += ("suppress", "_same_value")
UNSEEN = ("prefetch", "prefetch_row")
PARALLEL = r"(S_c|S_t|S_va|S_te|e1|overlap|log|lent|judged|feedback|parts\[.*\]|stream|samples|shuffled|batch|batch_t"
PARALLEL += r"|piece|target|triplets\(.*\))$"
OF_PAIRS = ("score_pairs", "_score_pairs", "_dot_products", "predict", "tangent", "_tangent", "first_values")
OF_PAIRS += ("add_first_errors", "_add_gradients", "_loss_on_S_t", "_renumbered")
OF_PAIRS += ("_affinities", "_asked_pairs", "z", "_draw_items")
GRIDS = ("wide", "paper", "even", "near")
SAME_RESULT = {  # (file, function, class or variable) -> why a change there costs time at most, or is a choice
    ("dubnb/data/delimited.py", "h"): "the hash of a text: the same",
    ("dubnb/data/delimited.py", "piece"): "bits that go into that hash",
    ("dubnb/objective/als.py", "run"): "runs of any length share out all rows among the lanes, which a test sees",
    ("dubnb/calibration.py", "theta"): "where Newton's method begins: it is convex, and ends at one minimum",
    ("dubnb/evaluation.py", "tile"): "how many rows are sorted at a time",
    ("dubnb/report/tables.py", "widths"): "rows of another length are refused when they are aligned, if not before",
    ("dubnb/data/simulate.py", "Config"): "calibrated; what they lead to is tested against Yahoo! R3's statistics",
    ("dubnb/data/simulate.py", "_SIMULATED"): "the same; what of it is known of real logs has a test",
    ("dubnb/data/simulate.py", "_YAHOO"): "the same",
    ("dubnb/data/simulate.py", "_PRODUCT"): "the same",
}
SAID = ("warn", "InputError", "SweepError", "DivergenceError", "TypeError", "ValueError", "print", "shown", "tqdm")
SAID += ("bar.update", "progress.update")


def nearest_tests() -> dict[str, tuple[str, ...]]:
    """{module: the files of tests that use its names, those first that are named after it or use most names}.

    A name counts more if few files of tests use it. Helpers in tests/ that a file imports count as its text. The names
    of modules that import a module count a little: private code is tested through them.
    """
    texts = {path.name: path.read_text() for path in sorted((ROOT / "tests").glob("*.py"))}
    words = {}
    for name in texts.keys() - set(OF_THE_REPOSITORY):
        if name.startswith("test_"):
            imported = re.findall(r"from tests[. ].*|import tests\..*", texts[name])
            helpers = [f"{word}.py" for word in re.findall(r"\w+", " ".join(imported))]
            whole = [texts[each] for each in [name, *helpers] if each in texts]
            words[name] = {*re.findall(r"[A-Za-z]\w+", " ".join(whole)), *parts_of_name(name)}
    modules = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted((ROOT / "dubnb").rglob("*.py"))}
    uses: dict[str, Counter[str]] = {file: Counter() for file in modules}
    for file, text in modules.items():
        own = {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        for name in {Path(file).stem.strip("_"), *own} - {"__init__"}:
            users = [test for test, found in words.items() if name in found]
            uses[file].update({test: math.log((1 + len(words)) / len(users)) for test in users})
    nearest = {}
    for file in modules:
        score = Counter(uses[file])
        package, _, stem = file.removesuffix(".py").replace("/", ".").rpartition(".")
        imports = re.compile(rf"{re.escape(package)}\.{stem}\b|from {re.escape(package)} import .*\b{stem}\b")
        for other, text in modules.items():
            if imports.search(text):
                score.update({test: 0.1 * value for test, value in uses[other].items()})
        first = {test for test in score if stem.strip("_") in parts_of_name(test)}
        nearest[file] = tuple(sorted(score, key=lambda test: (test not in first, -score[test], test)))
    return nearest


def parts_of_name(test: str) -> list[str]:
    """The words of the name of a file of tests."""
    return test[len("test_") : -len(".py")].split("_")


def mutations() -> list[Mutation]:
    """All mutants of all modules but those of LEFT_OUT."""
    found, nearest = [], nearest_tests()
    for path in sorted((ROOT / "dubnb").rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        if not file.startswith(tuple(LEFT_OUT)):
            found += of_source(file, path.read_text(), nearest[file])
    return found


def of_source(file: str, source: str, tests: tuple[str, ...]) -> list[Mutation]:
    """The mutants of one file."""
    lines = source.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]

    def place(row: int, column: int) -> int:
        return starts[row - 1] + len(lines[row - 1].encode()[:column].decode())

    found = []
    same = {name for named, name in SAME_RESULT if named == file}
    for node in told(ast.parse(source), same):
        begin, end = place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)
        for new in changed(node):
            old = source[begin:end]
            # brackets keep the meaning of what stands around, a bare name or number needs none
            new = f"({new})" if isinstance(node, ast.BinOp | ast.Compare | ast.BoolOp | ast.UnaryOp) else new
            found.append(Mutation(file, old, new, tests, at=begin))
    return found


def told(node: ast.AST, same: Set[str] = frozenset()) -> Iterator[ast.AST]:
    """Every node but annotations, docstrings, messages, choices, what type checkers read, and what `same` names."""
    targets = [*getattr(node, "targets", ()), getattr(node, "target", node)]
    if same & {getattr(each, "name", getattr(each, "id", "")) for each in targets}:
        return
    if isinstance(node, ast.FunctionDef) and node.name in OF_PAIRS:
        same = same | {"len(users)", "len(items)"}
    if isinstance(node, ast.Call) and ast.unparse(node) in same:
        return
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Raise | ast.Assert):
        return
    if isinstance(node, ast.Call) and any(word in ast.unparse(node.func) for word in (*SAID, *UNSEEN)):
        return
    if isinstance(node, ast.FunctionDef) and node.name in UNSEEN:
        return
    if isinstance(node, ast.If) and all(ast.unparse(each).split("(")[0].split(".")[-1] in UNSEEN for each in node.body):
        return
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "JIT_ENABLED"):
        for child in node.orelse:
            yield from told(child, same)
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if is_choice(node):
        return
    if isinstance(node, ast.Subscript) and re.search(r"\b(users|items)\.shape\[[12]\]$", ast.unparse(node)):
        yield from told(node.slice, same)
        return
    if is_number_of_pairs(node):
        yield from told(node.args[0].value, same)
        return
    if isinstance(node, ast.expr):
        yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from told(child, same)


def is_choice(node: ast.AST) -> bool:
    """Numbers that were chosen: of a grid, or under a name in capitals."""
    if isinstance(node, ast.keyword):
        waits = node.arg == "timeout" and isinstance(node.value, ast.Constant | ast.Name | ast.Attribute)
        return (
            waits
            or node.arg in GRIDS
            or f"{node.arg}={ast.unparse(node.value)}"
            in (
                "strict=True",
                "copy=False",
                "zeros=False",
                "refresh=False",
            )
        )
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target) in GRIDS
    if isinstance(node, ast.arguments):
        named = [
            *zip(node.args[::-1], node.defaults[::-1], strict=False),
            *zip(node.kwonlyargs, node.kw_defaults, strict=True),
        ]
        seeds = [default for argument, default in named if argument.arg in ("seed", "deep")]
        node.defaults = [each for each in node.defaults if each not in seeds]
        node.kw_defaults = [each for each in node.kw_defaults if each not in seeds]
    if not isinstance(node, ast.Assign) or not ast.unparse(node.targets[0]).replace("(", "").lstrip("_").isupper():
        return False
    numbers = ast.Constant | ast.BinOp | ast.UnaryOp | ast.Tuple | ast.Dict | ast.operator | ast.unaryop | ast.Load
    inside = list(ast.walk(node.value))
    names = any(isinstance(each, ast.Constant) and each.value in SETS for each in inside)
    return not names and all(isinstance(each, numbers) for each in inside)


def is_number_of_pairs(node: ast.AST) -> bool:
    """`len(x.users)` or `len(x.items)`, the same where x holds pairs."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) != "len" or not isinstance(node.args[0], ast.Attribute):
        return False
    owner, name = node.args[0].value, node.args[0].attr
    return name in ("users", "items") and re.search(rf"(^|\.){PARALLEL}", ast.unparse(owner)) is not None


def changed(node: ast.AST) -> Iterator[str]:
    """The texts that may stand in place of an expression."""
    if isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
        left, right = ast.unparse(node.left), ast.unparse(node.right)
        yield f"{left} {SIGNS[type(node.op)]} ({right})"  # sign
        yield left  # a term dropped
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        sides = [ast.unparse(side) for side in (node.left, node.comparators[0])]
        at_limit = isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE)
        if not (at_limit and any(is_limit(side) for side in (node.left, node.comparators[0]))):
            yield f"{sides[0]} {COMPARISONS[type(node.ops[0])]} {sides[1]}"
    elif isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        yield word.join(f"({ast.unparse(value)})" for value in node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield ast.unparse(node.operand)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield repr(node.value + 1)  # off by one
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield repr(not node.value)
    elif isinstance(node, ast.Constant) and node.value in SETS:
        yield repr(SETS[node.value])  # another set
    elif isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        if name in SETS and isinstance(node.ctx, ast.Load):
            text = ast.unparse(node)
            yield text[: len(text) - len(name)] + SETS[name]
    elif isinstance(node, ast.Call):
        yield from swapped(node)


def is_limit(side: ast.expr) -> bool:
    """A name in capitals, or a tolerance."""
    if isinstance(side, ast.Constant):
        return isinstance(side.value, float) and 0 < side.value < 1e-6
    name = ast.unparse(side)
    return name.split(".")[-1].isupper() and len(name) > 1


def swapped(call: ast.Call) -> Iterator[str]:
    """The first two plain arguments change places."""
    if len(call.args) < 2 or any(isinstance(each, ast.Starred) for each in call.args[:2]):
        return
    if ast.unparse(call.func).split(".")[-1] in SYMMETRIC or ast.unparse(call.func) == "np.clip":
        return  # np.clip(x, low, high) is the lesser of high and the greater of x and low
    first, second, *rest = (ast.unparse(each) for each in call.args)
    if first != second and not isinstance(call.args[0], ast.Constant):
        named = [ast.unparse(each) for each in call.keywords]
        yield f"{ast.unparse(call.func)}({', '.join([second, first, *rest, *named])})"
