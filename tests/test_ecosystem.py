"""Use from other tools: scikit-learn, notebooks and plots; and the examples, which run unchanged."""

import contextlib
import importlib.util
import json
import socket
import struct
import sys
import threading
import urllib.error
import urllib.request
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dubnb
from dubnb import _progress
from dubnb._check import InputError
from tests.method_tools import QUICK

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
pytestmark = pytest.mark.filterwarnings("ignore:.*below popularity")


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data(small_log):
    return small_log


def frames(n=400, seed=0):
    """(X, y, the randomized log): users like items of their own parity."""
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(40 * 30)
    users, items = pairs // 30, pairs % 30
    labels = (users % 2 == items % 2).astype(int)
    X = pd.DataFrame({"user": users, "item": items})
    random = X.assign(label=labels)[n : n + 300]
    return X[:n], labels[:n], random


@pytest.mark.needs_jit
def test_scikit_learn_s_search_and_pipeline_work():
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    from dubnb.sklearn import Recommender

    X, y, random = frames()
    params = [{"rank": 4, "gamma": 0.03, "epochs": 5}, {"rank": 4, "gamma": 0.03, "epochs": 5, "lam": 1e6}]
    search = GridSearchCV(Recommender("dub-x", random=random), {"params": params}, cv=2, scoring="roc_auc")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        search.fit(X, y)
    assert search.best_params_["params"] == params[0] and search.best_score_ > 0.75
    pipeline = make_pipeline(FunctionTransformer(), Recommender("dub-x", params[0], random)).fit(X, y)
    p = pipeline.predict_proba(X)
    assert p.shape == (len(X), 2) and np.allclose(p.sum(axis=1), 1) and pipeline.score(X, y) > 0.7
    assert np.isfinite(pipeline.decision_function(pd.DataFrame({"user": [3, 999], "item": [999, 2]}))).all()


def test_the_adapter_refuses_what_it_cannot_read():
    from dubnb.sklearn import Recommender

    with pytest.raises(InputError, match="pass the randomized log"):
        Recommender().fit([[0, 1]], [1])
    with pytest.raises(InputError, match=r"X of shape \(1, 3\)"):
        Recommender(random=frames()[2]).fit([[0, 1, 2]], [1])


def test_html_of_a_model_is_escaped_and_says_how_well(base):
    assert "not fitted" in dubnb.Base()._repr_html_()
    html = base._repr_html_()
    assert f"{base.history_['va_auc'].max():.4f}" in html and "9 users x 8 items" in html
    base.data_["name"], before = "<script>", base.data_["name"]
    try:
        assert "<script>" not in base._repr_html_() and "&lt;script&gt;" in base._repr_html_()
    finally:
        base.data_["name"] = before


def test_html_of_data_and_of_sweeps(data):
    from dubnb.sweeps import Sweep

    html = data._repr_html_()
    assert "9 users x 8 items" in html and "30 pairs" in html and "S_te" in html
    trials = pd.DataFrame({"status": ["done", "failed"]})
    shown = Sweep("runs/<x>", dubnb.Base, data, trials, {"params": {"rank": 3}})._repr_html_()
    assert "1 done of 2" in shown and "runs/&lt;x&gt;" in shown and "&#x27;rank&#x27;: 3" in shown
    assert "no point finished" in Sweep("x", dubnb.Base, data, trials, None)._repr_html_()


def test_the_course_of_training_as_a_picture(data):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    model = dubnb.DUB(**QUICK).fit(data)
    ax = model.plot_history()
    lines = [line for line in ax.get_lines() if len(line.get_xdata()) > 1]
    assert [line.get_label() for line in lines] == ["M_t", "M_c", "refine"]
    assert [float(x) for line in lines for x in line.get_xdata()] == [1, 2, 3, 4, 5, 6]
    values = [float(v) for line in lines for v in line.get_ydata()]
    assert values == pytest.approx(model.history_["va_auc"].tolist())
    matplotlib.pyplot.close("all")


def test_progress_bars_need_a_terminal_or_notebook(monkeypatch):
    monkeypatch.setattr(_progress.sys, "modules", {})
    monkeypatch.setattr(_progress.sys, "stderr", None)
    assert not _progress.watched()
    monkeypatch.setattr(_progress.sys, "modules", {"ipykernel": None})
    assert _progress.watched()


# -- examples


@pytest.fixture
def address(base):
    with example("serve").server_of(base, port=0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def fetch(url):
    try:
        with urllib.request.urlopen(url, timeout=300) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_server_answers_as_the_model_does(address, base):
    status, found = fetch(f"{address}/recommend?user=3&k=2")
    items, scores = base.recommend([3], k=2)
    assert status == 200 and not found["fallback"]
    assert [entry["item"] for entry in found["items"]] == items[0].tolist()
    assert [entry["score"] for entry in found["items"]] == pytest.approx(scores[0].tolist())
    assert fetch(f"{address}/recommend?user=99&k=2")[1]["fallback"]
    assert fetch(f"{address}/health")[1] == {"method": "base", "users": 9, "items": 8}
    assert fetch(f"{address}/similar?item=2&k=3")[1]["items"][0]["item"] == base.similar_items(2, 3)[0][0, 0]
    listed = fetch(f"{address}/new?items=1,2&labels=1,0&k=3")[1]["items"]
    assert [entry["item"] for entry in listed] == base.fold_in([1, 2], [1, 0]).recommend(3)[0].tolist()
    for path in (
        "/nothing",
        "/recommend?user=x",
        "/recommend",
        "/recommend?user=1&k=0",
        "/new?items=99",
        "/new?items=1&labels=x",
        "/new?items=1&labels=1_0",
        "/new?items=1&labels=nan",
        "/new?items=1&labels=",  # not the same as no labels, which means liked
        "/recommend?user=1_0",
        "/recommend?user=%D9%A1",  # the Arabic digit 1
        "/recommend?user=1,2",
        "/recommend?user=1&k=%D9%A1",
        "/similar?item=1,2",
        "//[x/recommend?user=1",  # not a URL
    ):
        status, found = fetch(address + path)
        assert status == 400 and found["error"] and "\n" not in found["error"]
        assert "unpack" not in found["error"]  # a reason, not Python's own


def test_the_server_closes_connections_that_send_nothing(base, monkeypatch):
    serve = example("serve")
    monkeypatch.setattr(serve, "IDLE_SECONDS", 0.2)
    with serve.server_of(base, port=0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with socket.create_connection(server.server_address, timeout=300) as connection:
            assert connection.recv(1) == b""  # closed by the server
        server.shutdown()


def test_an_id_that_is_a_text_may_contain_commas():
    serve = example("serve")
    X, labels, random = frames()
    named = [log.assign(user=[f"{user},1" for user in log["user"]]) for log in (X.assign(label=labels), random)]
    model = dubnb.Base(**QUICK).fit(dubnb.Partition.from_frames(*named))
    answer = serve.Service(model).answer("/recommend", {"user": "3,1", "k": "2"})
    assert answer["user"] == "3,1" and not answer["fallback"]
    assert [entry["item"] for entry in answer["items"]] == model.recommend(["3,1"], k=2)[0][0].tolist()
    with pytest.raises(serve.Refused, match="user='' must be one id, such as user=0,1"):
        serve.Service(model).answer("/recommend", {"user": ""})


def test_the_server_prints_nothing_of_clients_that_have_gone(base, monkeypatch, capsys):
    serve = example("serve")
    ended = threading.Event()
    monkeypatch.setattr(serve.Server, "shutdown_request", lambda self, request: (request.close(), ended.set()))
    with serve.server_of(base, port=0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with socket.create_connection(server.server_address, timeout=300) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close resets
            connection.sendall(b"GET /recom")
        assert ended.wait(300)
        server.shutdown()
    assert capsys.readouterr().err == ""


def test_ctrl_c_ends_the_server_without_a_traceback(base, tmp_path, monkeypatch, capsys):
    serve = example("serve")
    base.save(tmp_path / "m.npz")
    monkeypatch.setattr(sys, "argv", ["serve.py", str(tmp_path / "m.npz"), "--port", "0"])

    def interrupted(server):
        raise KeyboardInterrupt

    monkeypatch.setattr(serve.Server, "serve_forever", interrupted)
    serve.main()
    assert capsys.readouterr().out.startswith("http://127.0.0.1:")


def test_the_server_lets_many_clients_wait(base):
    with example("serve").server_of(base, port=0) as server, contextlib.ExitStack() as clients:
        for _ in range(60):  # nobody accepts yet; beyond the queue, a client would wait a second and try again
            clients.enter_context(socket.create_connection(server.server_address, timeout=0.5))


def test_a_tracker_records_epochs_and_results(data, tmp_path):
    track = example("track")
    track.record(dubnb.Base(**QUICK), data, track.JsonLines(tmp_path / "runs.jsonl"))
    rows = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert rows[0]["step"] == 0 and rows[0]["M_c/va_auc"] > 0 and "p_at_5" in rows[-1]
    assert next(row for row in rows if "params" in row)["params"]["rank"] == "3"
    assert not any("@" in name for row in rows for name in row)


@pytest.mark.slow
def test_optuna_searches(monkeypatch):
    pytest.importorskip("optuna")
    study = example("tune_with_optuna").main(trials=2)
    assert len(study.trials) == 2 and study.best_value > 0.6


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_it_should():
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(EXAMPLES / "first_hour.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=3600, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [output["data"] for output in outputs if "data" in output]
    assert any("text/html" in found and "dub-x" in found["text/html"] for found in shown)
    assert any("image/png" in found for found in shown)
    assert not any(output["output_type"] == "error" for output in outputs)
