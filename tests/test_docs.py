"""README and docs: tables are those of the records, commands parse, links lead somewhere, examples hold."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dubnb
from dubnb import metrics
from dubnb.cli import COMMANDS, main
from dubnb.cli._options import load_data as load
from dubnb.cli._options import parser_of

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "bench" / "README.md"])
FENCED = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
pytestmark = pytest.mark.skipif(not (ROOT / "bench").is_dir(), reason="needs a checkout, not an installed package")


def names(path):
    return str(path.relative_to(ROOT))


def blocks(path, *languages):
    return [body for language, body in FENCED.findall(path.read_text()) if language in languages]


def anchors(path):
    """The names by which links reach the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=names)
def test_links_lead_somewhere(path):
    text = FENCED.sub("", path.read_text())
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", text):
        if "://" not in target:
            page = path.parent / target if target else path
            assert page.exists(), f"{names(path)} links to {target}, which is not there"
            assert not anchor or anchor in anchors(page), f"{names(path)} links to {target}#{anchor}: no such heading"


@pytest.mark.parametrize("path", DOCUMENTS, ids=names)
def test_commands_parse(path):
    for body in blocks(path, "", "sh"):
        for line in body.splitlines():
            for command in re.split(r"&&|\|", line.partition(" #")[0]):
                if command.strip().startswith("dubnb ") and "..." not in command:
                    parser_of(COMMANDS).parse_args(shlex.split(command)[1:])


def test_tables_are_those_of_the_records():
    tables = pytest.importorskip("bench.tables")
    for path in tables.documents():
        assert tables.renewed(path.read_text()) == path.read_text(), f"{names(path)}: run python -m bench.tables"


@pytest.fixture(scope="module")
def api_page():
    return pytest.importorskip("docs.api_page")


def test_api_page_has_every_public_name(api_page):
    text = api_page.markdown()
    assert all(f"### dubnb.{name}\n" in text for name in dubnb.__all__ if callable(getattr(dubnb, name)))


def test_api_page_describes_shared_parameters_once(api_page):
    text = api_page.markdown()
    assert text.count("\n`batch_size`") == text.count("\n#### model.fit\n") == 1
    own = text.partition("### dubnb.DubX\n")[2].partition("\n### ")[0]
    assert "\n`exposure_power`" in own and "\n`rank`" not in own


def test_api_page_lists_parameters_with_types_and_defaults(api_page):
    def scale(values, *, by=2.0, name="own data", quiet=None):
        """Multiply <values>.

        Parameters
        ----------
        values : array
            Numbers, of
            any shape.
        by : float
            The factor.
        name, quiet : str
            Both.

        Notes
        -----
        + is not a list here.

            a formula

        Examples
        --------
        >>> scale([1])
        [2.0]
        """

    _, signature, text = api_page.entry("## scale", scale, "scale")
    assert signature == '```python\nscale(values, *, by=2.0, name="own data", quiet=None)\n```\n'
    assert "Multiply &lt;values>." in text
    assert "`values` : *array*\n: Numbers, of\n  any shape.\n" in text
    assert "`by` : *float*, default `2.0`\n: The factor.\n" in text
    assert '`name`, `quiet` : *str*, default `"own data"`\n: Both.\n' in text
    assert "\n\\+ is not a list here.\n\n    a formula\n" in text
    assert "```pycon\n>>> scale([1])\n[2.0]\n```" in text


def test_the_worked_example_of_evaluation():
    """docs/evaluation.md, by hand there: one user, six items."""
    scores = np.array([0.9, 0.8, 0.7, 0.1, 0.3, 0.6])
    log = {
        "S_c": ([0], [0], [1.0]),
        "S_t": ([0], [3], [0.0]),
        "S_va": ([], [], []),
        "S_te": ([0, 0, 0], [1, 2, 4], [0.0, 1.0, 1.0]),
    }
    parts = {part: [np.array(c, np.int64 if k < 2 else float) for k, c in enumerate(cs)] for part, cs in log.items()}
    data = dubnb.Partition(parts, (1, 6))
    text = (ROOT / "docs" / "evaluation.md").read_text()
    full = dubnb.evaluate(lambda users, items: scores[items], data, ks=(2, 5))
    assert (full["p@5"], full["r@5"], full["p@2"], full["auc"]) == (0.4, 1.0, 0.5, 0.0)
    assert f"nDCG = {full['ndcg']:.4f}".replace("0.", ".") in text
    assert full["user_auc"] == 0.0 and full["percentile"] == pytest.approx(1 / 3)
    both = dubnb.Partition(parts | {"S_c": ([0, 0], [0, 4], [1.0, 1.0])}, (1, 6))
    assert dubnb.evaluate(lambda users, items: scores[items], both, ks=(5,))["p@5"] == 0.2
    assert metrics.liked([20 / 4, 20 / 10], [1, 2], [2, 5]) == pytest.approx(0.45) and "= .45" in text
    own = dubnb.evaluate(lambda users, items: scores[items], data, protocol="test-items", ks=(2,))
    assert f"nDCG = {own['ndcg']:.4f}".replace("0.", ".") in text


def first_hour():
    """README's lines of the first hour, as words."""
    text = (ROOT / "README.md").read_text().partition("## Your own log, the first hour")[2]
    return [shlex.split(line.partition(" #")[0])[1:] for line in FENCED.findall(text)[0][1].splitlines()]


@pytest.fixture
def own_logs(tmp_path, monkeypatch):
    """The tutorial's files, in the directory where commands now run."""
    written = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "write_logs.py"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert written.returncode == 0, written.stderr
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.needs_jit
@pytest.mark.filterwarnings("error:.*click-only")
def test_readmes_first_hour_reads_the_tutorials_log_as_ratings(own_logs, capsys):
    audit, compare, recommend = first_hour()
    assert [audit[0], compare[0], recommend[0]] == ["audit", "compare", "recommend"]
    assert main([*audit, "--quiet"]) == 0, capsys.readouterr().err
    assert "click-only" not in capsys.readouterr().err
    for words in (audit, compare):
        data = load(parser_of(COMMANDS).parse_args(words))
        assert data.graded and not data.click_only


@pytest.mark.slow
def test_readmes_first_hour_runs_as_it_stands(own_logs):
    for words in first_hour():
        more = ["--budget", "smoke"] if words[0] == "compare" else []
        done = subprocess.run(
            [sys.executable, "-m", "dubnb", *words, *more],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{words}\n{done.stderr}"
    assert (own_logs / "mine" / "winner.npz").exists() and (own_logs / "recs.csv").read_text().count("\n") > 100


@pytest.mark.slow
def test_the_tutorial_runs_as_it_stands(tmp_path):
    """Every command and every line of Python, in order, in one directory."""
    tutorial = ROOT / "docs" / "tutorial.md"
    for language, body in FENCED.findall(tutorial.read_text()):
        if language == "python":
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", body], cwd=tmp_path, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            continue
        for line in body.splitlines():
            words = shlex.split(line.partition(" #")[0])
            run = [sys.executable, str(ROOT / words[1]), *words[2:]]
            if words[0] == "dubnb":
                run = [sys.executable, "-m", "dubnb", *words[1:]]
            done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
    assert (tmp_path / "mine" / "winner.npz").exists() and (tmp_path / "vectors" / "item_vectors.npy").exists()


@pytest.mark.slow
def test_examples_of_other_pages_run(tmp_path):
    """Every block of Python in the pages that use the tutorial's files and its model m.npz."""
    pytest.importorskip("sklearn")
    log = ["--biased", "log.csv", "--random", "random.csv", "--label", "rating", "--threshold", "3"]
    fit = ["-m", "dubnb", "fit", *log, "--method", "dub-x", "--out", "m.npz", "--quiet"]
    for words in ([str(ROOT / "examples" / "write_logs.py"), "."], fit):
        subprocess.run([sys.executable, *words], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    for page in ("side-features", "online", "ab-tests", "shipping"):
        for body in blocks(ROOT / "docs" / f"{page}.md", "python"):
            command = [sys.executable, "-W", "ignore", "-c", body]
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, f"{page}: {body}\n{done.stderr}"
