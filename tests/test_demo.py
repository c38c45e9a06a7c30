"""The demo: its numbers, its sentence, its plot."""

import json

import numpy as np
import pytest

from dubnb import demo
from dubnb.cli import main
from dubnb.data.partition import Partition, Triplets
from dubnb.report import plots

PNG = b"\x89PNG\r\n\x1a\n"


def made_up(dub_minus_bridge):
    """A Result whose truth AUC of dub is bridge's plus the given differences, one per data seed."""
    seeds = np.arange(len(dub_minus_bridge))
    values = {method: {metric: 0.6 + 0.0 * seeds for metric in demo.COLUMNS.values()} for method in demo.METHODS}
    values["dub"] = {metric: 0.6 + np.array(dub_minus_bridge) for metric in demo.COLUMNS.values()}
    curves = {"truth": np.linspace(0.2, 0.4, 10), "base": np.full(10, 0.4), "dub": np.linspace(0.25, 0.4, 10)}
    return demo.DemoResult(seeds.tolist(), "full-ranking", values, "dub", curves, {"auc": 0.5, "ndcg": 0.61})


def test_by_popularity_is_the_mean_over_unseen_pairs():
    rng = np.random.default_rng(1)
    n_users, n_items = 15, 20
    pairs = rng.permutation(n_users * n_items)
    parts = {}
    for part, chosen in zip(("S_c", "S_t", "S_va", "S_te"), np.split(pairs[:150], [90, 110, 120]), strict=True):
        parts[part] = Triplets(chosen // n_items, chosen % n_items, np.ones(len(chosen)), np.ones(len(chosen)))
    data = Partition(parts, (n_users, n_items))
    probabilities = rng.random((n_users, n_items))
    seen = (data.S_c + data.S_t).toarray() > 0
    order = sorted(range(n_items), key=lambda item: (data.S_c.getnnz(axis=0)[item], item))
    expected = [
        np.mean([probabilities[u, i] for u in range(n_users) for i in order[k : k + 2] if not seen[u, i]])
        for k in range(0, n_items, 2)
    ]
    np.testing.assert_allclose(demo.by_popularity(data, probabilities), expected)


def test_curves_are_means_over_all_data_seeds(monkeypatch):
    monkeypatch.setattr(demo, "METHODS", ("base",))
    both, *each = (demo.run(n, first) for n, first in ((2, 0), (1, 0), (1, 1)))
    assert both.curves.keys() == {"truth", "base"}
    for name, curve in both.curves.items():
        own = [result.curves[name] for result in each]
        assert not np.allclose(*own)
        np.testing.assert_allclose(curve, np.mean(own, axis=0))


def test_it_says_which_methods_read_grades(monkeypatch):
    monkeypatch.setattr(demo, "METHODS", ("base", "ials", "dub-x"))
    found = demo.run(1)
    assert found.graded == ("dub-x",)
    assert demo.inputs_sentence(found).startswith("By default dub-x reads the grades behind the labels")
    assert demo.inputs_sentence(found._replace(graded=())) == "All methods read 0/1 labels."


def test_the_verdict_says_when_nothing_is_shown():
    assert demo.differences_sentence(made_up([0.01, 0.02])).startswith(
        "Differences in truth AUC: dub - base +0.015 (+0.010 to"
    )
    assert "no clear difference" in demo.differences_sentence(made_up([0.01, -0.005, 0.002]))
    assert "same sign in every seed" in demo.differences_sentence(made_up([0.01, 0.005]))
    assert "+0.010 (one data seed: no spread known)" in demo.differences_sentence(made_up([0.01]))


def test_the_table_stars_the_best():
    rows = demo.result_table(made_up([0.01, 0.02])).splitlines()
    assert [line.split()[0] for line in rows[1:]] == list(demo.METHODS)
    assert [line.count("*") for line in rows[1:]] == [len(demo.COLUMNS) * (m == "dub") for m in demo.METHODS]


def test_the_plot_title_names_the_best_method():
    """Title and colour follow the numbers, not a fixed method."""
    result = made_up([0.01, 0.02])
    assert plots._finding(result).startswith("dub ranks unseen pairs best (AUC 0.600 for base → 0.615)")
    assert (plots._colour(result, "dub"), plots._colour(result, "bridge")) == (plots.BLUE, plots.GREY)
    curves = result.curves | {"dub-x": result.curves["dub"]}
    values = result.values | {"dub-x": {"truth_auc": np.array([0.7, 0.8])}}
    other = result._replace(best="dub-x", curves=curves, values=values)
    assert plots._finding(other).startswith("dub-x ranks unseen pairs best (AUC 0.600 for base → 0.750)")
    assert (plots._colour(other, "dub-x"), plots._colour(other, "dub")) == (plots.BLUE, plots.GREY)
    assert "No method" in plots._finding(result._replace(best="base"))


def test_the_plot_is_a_png_and_the_same_twice():
    pytest.importorskip("matplotlib")
    png = plots.demo_png(made_up([0.01, 0.02]))
    assert png.startswith(PNG) and len(png) > 20_000
    assert png == plots.demo_png(made_up([0.01, 0.02]))


def test_plots_are_numbered_unless_overwrite(monkeypatch, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(demo, "run", lambda *args, **options: made_up([0.01, 0.02]))
    (tmp_path / "dubnb-demo.png").write_text("mine")
    assert main(["demo", "--out", str(tmp_path)]) == 0
    assert "dubnb-demo-2.png" in capsys.readouterr().out
    assert (tmp_path / "dubnb-demo.png").read_text() == "mine"
    assert main(["demo", "--out", str(tmp_path), "--overwrite"]) == 0
    assert (tmp_path / "dubnb-demo.png").read_bytes().startswith(PNG)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dubnb-demo-2.png", "dubnb-demo.png"]


def test_without_matplotlib_the_table_remains(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(demo, "run", lambda *args, **options: made_up([0.01, 0.02]))
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    assert main(["demo", "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "truth AUC" in out and "Plot" not in out
    assert err.count("\n") == 1 and "pip install 'dubnb[report]'" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [["--seeds", "0"], ["--seed", "-1"], ["--out", "no-such-directory"]])
def test_demo_refuses(options, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", *options]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.needs_jit
def test_demo_end_to_end(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--seeds", "1", "--quiet", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    auc = {method: metrics["truth_auc"] for method, metrics in document["methods"].items()}
    assert list(auc) == list(demo.METHODS)
    assert auc["dub"] > auc["base"] > auc["unif"] > 0.55
    curves = {name: np.array(curve) for name, curve in document["probability_by_popularity"].items()}
    best = max(auc, key=lambda method: auc[method])
    assert list(curves) == ["truth", "base", best] and auc[best] > auc["dub"]
    off = {name: np.abs(curves[name] - curves["truth"]).mean() for name in ("base", best)}
    assert off[best] < off["base"] < 0.03  # calibrated on S_va; base is still too low for popular items
    if document["plot"]:
        assert (tmp_path / "dubnb-demo.png").read_bytes().startswith(PNG)
