"""CONTRIBUTING's recipes, executed: its examples are applied to a copy of the package, and show up everywhere."""

import dataclasses
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dubnb import losses
from dubnb.data.datasets import Dataset
from dubnb.methods._method import Method
from dubnb.methods._params import lam_of_S_c, of_lam
from tests import naive, naive_recipes

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ("A loss", "A method", "A metric", "A dataset")

# What a newcomer's user does, in the copy: the answers go to standard output.
PROGRAM = """
import contextlib, io, json, sys, warnings
warnings.simplefilter("ignore")
import dubnb
from docs.api_page import markdown
from dubnb.cli import main
from dubnb.experiments.systems import Choice
from dubnb.report import figures

def shown(*arguments):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main(list(arguments))
    return out.getvalue()

if __name__ == "__main__":
    data = dubnb.load_dataset("chessboard", seed=1)
    model = dubnb.make("counted", rank=2, epochs=2, times=3, loss="quartic").fit(data)
    model.save("m.npz")
    grid = {"times": (1.0, 4.0), "loss": ("quartic",), "rank": (2,), "epochs": (1,)}
    found = dubnb.sweep(method="counted", data=data, grid=grid, select="mrr", out="sweep", quiet=True)
    answers = {
        "scores": model.weights_.score_pairs(*data.triplets("S_te")[:2]).tolist(),
        "evaluate": {name: value for name, value in model.evaluate(data).items()},
        "loaded": dubnb.load("m.npz").params_["times"],
        "help": shown("fit", "--help-methods") + shown("fit", "--help-data"),
        "json": json.loads(shown("evaluate", "--data", "chessboard", "--data-seed", "1", "--model", "m.npz", "--json")),
        "text": shown("evaluate", "--data", "chessboard", "--data-seed", "1", "--model", "m.npz"),
        "status": shown("sweep", "--status", "sweep"),
        "best": json.load(open("sweep/best.json")),
        "class": dubnb.Counted(rank=2).name,
        "dir": dir(dubnb),
        "systems": [system.name for system in Choice().systems(data)],
        "chosen": [system.name for system in Choice(["counted"], ["mf"]).checked().systems(data)],
        "colour": figures.colour("counted"),
        "docs": markdown(),
    }
    print(json.dumps(answers, default=str))
"""


def diffs(name):
    """The diff of one recipe: {file: [(old lines, new lines)]}."""
    text = (ROOT / "CONTRIBUTING.md").read_text().partition(f"**{name}.**")[2]
    block = text.partition("```diff\n")[2].partition("```")[0]
    assert block, f"CONTRIBUTING has no example for {name!r}"
    found, file = {}, ""
    for line in block.splitlines():
        if line.startswith("+++ "):
            file = line.removeprefix("+++ b/")
        elif line.startswith("@@"):
            found.setdefault(file, []).append(([], []))
        elif not line.startswith("---"):
            old, new = found[file][-1]
            (old if line[:1] != "+" else []).append(line[1:])
            (new if line[:1] != "-" else []).append(line[1:])
    return found


def apply(name, root):
    """Apply one recipe's diff; every old text must stand once."""
    for file, hunks in diffs(name).items():
        path = root / file
        text = path.read_text() if path.exists() else ""
        for old, new in hunks:
            old, new = ("\n".join(lines) + "\n" if lines else "" for lines in (old, new))
            assert not old or ("\n" + text).count("\n" + old) == 1, f"{name}: {file} has no such place any more:\n{old}"
            text = ("\n" + text).replace("\n" + old, "\n" + new)[1:] if old else text + new
        path.write_text(text)


def python(root, *arguments):
    environment = os.environ | {"PYTHONPATH": str(root), "NUMBA_DISABLE_JIT": "1", "COLUMNS": "200"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)


def copy_of_dubnb(directory):
    for part in ("dubnb", "tests", "docs"):
        shutil.copytree(ROOT / part, directory / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "setup.cfg", directory / "setup.cfg")
    return directory


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The package with all recipes applied, and what the program says about it."""
    root = copy_of_dubnb(tmp_path_factory.mktemp("recipes"))
    for name in RECIPES:
        apply(name, root)
    (root / "program.py").write_text(PROGRAM)
    process = python(root, "program.py")
    assert process.returncode == 0, process.stderr[-3000:]
    return root, json.loads(process.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", RECIPES)
def test_one_file_and_one_registry(name):
    """An example touches one file, or makes one and touches the registry beside it in few lines."""
    files = diffs(name)
    made = [file for file in files if not (ROOT / file).exists()]
    touched = {
        file: sum(len(new) - len(old) for old, new in hunks) for file, hunks in files.items() if file not in made
    }
    assert len(made) <= 1 and len(touched) == 1
    assert not made or next(iter(touched.values())) <= 7, touched
    assert not made or Path(made[0]).parent == Path(next(iter(touched))).parent


def test_newcomers_appear_in_evaluation_and_json(copy):
    _, answers = copy
    assert 0 < answers["evaluate"]["mrr"] <= 1
    assert answers["json"]["mrr"] == pytest.approx(answers["evaluate"]["mrr"])
    assert "MRR@50" in answers["text"]
    assert answers["loaded"] == 3.0


def test_newcomers_appear_in_the_command_line_s_help(copy):
    _, answers = copy
    assert re.search(r"^  counted +Both logs, each randomized pair counted several times", answers["help"], re.M)
    assert re.search(r"^  counted +also times", answers["help"], re.M)
    assert re.search(r"^  chessboard +users like the items of their own colour", answers["help"], re.M)


def test_one_registration_reaches_everything_that_lists_methods(copy):
    """`dubnb.Counted`, the default systems of compare and reproduce, their option --systems, colours, the API page."""
    _, answers = copy
    assert answers["class"] == "counted" and "Counted" in answers["dir"]
    assert "counted" in answers["systems"] and answers["chosen"] == ["counted"]
    assert answers["colour"].startswith("#")
    assert "### dubnb.Counted" in answers["docs"] and "How often a pair of S_t counts." in answers["docs"]


def test_newcomers_appear_in_sweeps(copy):
    _, answers = copy
    assert answers["best"]["params"]["times"] in (1.0, 4.0) and answers["best"]["params"]["loss"] == "quartic"
    assert "MRR" in answers["status"] or "mrr" in answers["status"]


def test_method_and_loss_train_as_they_say(copy, monkeypatch):
    """Scores after two epochs are those of c + 3 a with (s - y)^4, by the independent program."""
    root, answers = copy
    monkeypatch.setitem(naive.LOSSES, "quartic", (lambda s, y: (s - y) ** 4, lambda s, y: 4 * (s - y) ** 3))
    data = runpy.run_path(str(root / "dubnb" / "data" / "chessboard.py"))["load"](1)
    twin = naive_recipes.Recipe(data, "combine", {"rank": 2, "epochs": 2, "loss": "quartic"})
    terms = [naive_recipes.observed("a", twin.part("S_t"), 3.0), naive_recipes.observed("c", twin.part("S_c"))]
    model = twin.train("M_c", naive_recipes.new_model(data, twin.o, "c"), terms, twin.o.lam, twin.o.batch_size)
    S_te = data.triplets("S_te")
    np.testing.assert_allclose(answers["scores"], model.scores(S_te.users, S_te.items), rtol=1e-4, atol=1e-6)


def test_the_suite_names_missing_twins(copy):
    """A method without a twin, and a loss without one: the tests over the registries say which."""
    root, _ = copy
    process = python(root, "-m", "pytest", "-n0", "-q", "tests/test_recipes.py", "-k", "twin and counted", "--tb=short")
    assert process.returncode == 1 and "write the twin of 'counted'" in process.stdout
    process = python(root, "-m", "pytest", "-n0", "-q", "tests/test_losses.py", "-k", "quartic", "--tb=line")
    assert process.returncode == 1 and "quartic" in process.stdout


# -- forgotten pieces


def forgetful(**left_out):
    """A method like the recipe's, without some of its pieces."""
    body = {
        "__annotations__": {"times": float},
        "times": 2.0,
        "name": "forgetful",
        "TERMS": "c",
        "SETTINGS": {("mf", "sampled"): of_lam({"rank": 2, "lam": lam_of_S_c(1e-4)})},
        "CHECKS": {"times": lambda name, value: value},
        "all_terms": lambda self, fit, M_t: [],
    }
    for piece in left_out:
        del body[piece]
    return dataclasses.dataclass(kw_only=True, repr=False, eq=False)(type("Forgetful", (Method,), body))


@pytest.mark.parametrize("piece", ["TERMS", "SETTINGS", "all_terms"])
def test_a_method_without_a_piece_fails_by_its_name(piece):
    with pytest.raises((AttributeError, TypeError, NotImplementedError), match=piece):
        forgetful(**{piece: True})().fit(naive.small_partition())


def test_a_parameter_without_a_check_fails_by_its_name():
    with pytest.raises(TypeError, match="CHECKS has no entry for its parameter 'times'"):
        forgetful(CHECKS=True)().resolve()


def test_a_loss_without_a_branch_says_where_it_belongs():
    with pytest.raises(ValueError, match="value_and_derivative"):
        losses.loss_value(100, 0.5, 1.0)


def test_a_loss_without_a_property_fails_by_its_name():
    with pytest.raises(TypeError, match="affine"):
        losses.Loss(100, link=False, triangle=False, separable=False, symmetric=True, equation=2)


def test_a_dataset_without_a_description_fails_by_its_name():
    with pytest.raises(TypeError, match="description"):
        Dataset("chessboard:load", False)
