"""`dubnb compare`: what goes on, who wins and by what, the words, the files."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

import dubnb
from dubnb._check import InputError
from dubnb.experiments import compare as comparing
from dubnb.experiments.study import Case
from dubnb.experiments.systems import BASELINES, PAPER, Choice, System
from dubnb.sweeps.engine import Resources
from dubnb.sweeps.ledger import Ledger
from tests.sweep_tools import tiny_log

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def system(name, group=PAPER):
    return System(name, name, "mf", (), group)


def fit(va_auc, done=True):
    return SimpleNamespace(done=done, metrics={"va_auc": va_auc} if done else {}, seconds=1.0, reason=None)


def test_the_best_on_S_va_go_on_beside_base_and_the_baselines():
    scores = {"base": 0.5, "unif": 0.6, "combine": 0.9, "ips": 0.7, "cause": 0.8, "bridge": 0.95, "dub": 0.55}
    screened = {system(name): fit(value) for name, value in scores.items()}
    screened[system("autodebias")] = fit(0.99, done=False)  # failed: it cannot go on
    screened[system("popularity", BASELINES)] = fit(0.1)
    names = [each.name for each in comparing.going_on(screened)]
    assert names == ["base", "combine", "ips", "cause", "bridge", "popularity"]


def study(hits, others):
    """Two systems whose users' P@10 are given."""
    one, other = Case(system("dub")), Case(system("base"))
    judged = {one: [SimpleNamespace(per_user={"p@10": np.array(hits)})]}
    judged[other] = [SimpleNamespace(per_user={"p@10": np.array(others)})]
    return SimpleNamespace(judged=judged, budget=SimpleNamespace(bootstraps=500), seed=0), one, other


def test_a_gain_is_told_with_its_interval_and_noise_as_noise():
    rng = np.random.default_rng(0)
    base = rng.random(400)
    said = comparing._gain(*study(1.6 * base, base), "base would")
    assert said == (
        "It finds 60 % more liked items in the top 10 than base would (95 % interval +60 to +60 %, over users)."
    )
    said = comparing._gain(*study(0.4 * base, base), "base would")
    assert said.startswith("It finds 60 % fewer liked items") and "(95 % interval -60 to -60 %" in said
    said = comparing._gain(*study(rng.permutation(base), base), "base would")
    assert "which may be noise" in said and "Against what base would find: +0 %" in said
    assert re.search(r"95 % interval -[1-9]\d* to \+[1-9]\d* %", said)
    assert "which may be noise (95 % interval +0 to +0 %" in comparing._gain(*study(base, base), "base would")
    said = comparing._gain(*study(base, 0 * base), "base would")
    assert said == f"Its top 10 holds {100 * base.mean():.2f} liked items per hundred; base would find none."


def test_seeds_are_averaged_before_users_are_drawn():
    both, one, other = study([0.4, 0.0], [0.1, 0.3])
    both.judged[one].append(SimpleNamespace(per_user={"p@10": np.array([0.0, 0.8])}))
    said = comparing._gain(both, one, other, "base would")
    assert said.startswith("It finds 50 % more") and "(95 % interval +33 to +100 %" in said


@pytest.mark.needs_jit
def test_a_comparison_from_end_to_end(tmp_path):
    data, choice = tiny_log(), Choice(("base", "combine", "unif", "popularity"))
    out, quiet = tmp_path / "c", Resources(quiet=True)
    lines = []
    done = dubnb.compare(data, out, "smoke", choice, resources=quiet, say=lines.append)
    assert "every one of 4 systems once" in lines[0] and "about" in lines[1]
    rows = [row for row in Ledger(out / "work" / "fits").rows() if row["status"] == "done"]
    best = max((row for row in rows if row["seed"] == 0), key=lambda row: row["metrics"]["va_auc"])
    assert done.winner == best["method"] == done.model.name
    assert done.model.params_["lam"] == best["params"]["lam"]
    loaded = dubnb.load(out / "winner.npz")
    users, items = data.triplets("S_te").users, data.triplets("S_te").items
    assert np.array_equal(loaded.decision_function(users, items), done.model.decision_function(users, items))
    page = (out / "report.html").read_text()
    assert done.answer and all(sentence.split("(")[0].strip() in page for sentence in done.answer)
    assert "the ordinary, biased log" in page and "UNFINISHED" not in page  # the glossary
    assert json.loads((out / "about.json").read_text())["experiment"] == "compare"
    again = dubnb.compare(data, out, "smoke", choice, resources=quiet)
    assert list(again.answer) == list(done.answer) and len(Ledger(out / "work" / "fits").rows()) == len(rows)
    with pytest.raises(InputError, match="give another --out, or ask for the same"):
        dubnb.compare(data, out, "quick", choice, resources=quiet)


def test_a_log_that_cannot_choose_is_refused(tmp_path):
    data = tiny_log()
    parts = {part: data.triplets(part) for part in ("S_c", "S_t", "S_te")} | {"S_va": ([], [], [])}
    with pytest.raises(InputError, match="S_va must hold both labels"):
        dubnb.compare(dubnb.Partition(parts, (data.n_users, data.n_items)), tmp_path / "c")
    parts = {part: data.triplets(part) for part in ("S_c", "S_t", "S_va")} | {"S_te": ([], [], [])}
    with pytest.raises(InputError, match="S_te must hold both labels"):
        dubnb.compare(dubnb.Partition(parts, (data.n_users, data.n_items)), tmp_path / "c")
    with pytest.raises(InputError, match="budget='fast' is unknown"):
        dubnb.compare(data, tmp_path / "c", "fast")


def test_one_positive_is_enough_to_choose_on():
    data = tiny_log()
    S_va = data.triplets("S_va")
    parts = {part: data.triplets(part) for part in ("S_c", "S_t", "S_te")}
    for n_positives in (1, len(S_va.labels) - 1):
        parts["S_va"] = S_va._replace(labels=(np.arange(len(S_va.labels)) < n_positives).astype(float))
        comparing._check_labels(dubnb.Partition(parts, (data.n_users, data.n_items)))
