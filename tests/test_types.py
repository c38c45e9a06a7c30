"""mypy on the package, as setup.cfg says, and what it must refuse of a user's program.

python -m tests.test_types        # prints the modules that belong on setup.cfg's list of those to come
"""

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """import dubnb

dubnb.DUB(rank=50, gamma=None).fit(dubnb.load_dataset("simulated"))
dubnb.DUB(rank="fifty")
dubnb.DUB(gama=3)
dubnb.no_such_name
reveal_type(dubnb.DUB().fit)
"""


def mypy(*arguments, config=ROOT / "setup.cfg"):
    """mypy's lines; the cache is that of earlier runs in this tree."""
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--no-error-summary", *arguments]
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert process.returncode in (0, 1), process.stdout + process.stderr
    return process.stdout.splitlines()


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    pytest.importorskip("mypy")
    program = tmp_path_factory.mktemp("user") / "program.py"
    program.write_text(PROGRAM)
    return mypy("dubnb", str(program))


def said(lines, number):
    return [
        line for line in lines if f"program.py:{number}: error" in line or f"program.py:{number}: note: Reve" in line
    ]


def test_the_package_passes(lines):
    wrong = [line for line in lines if "program.py" not in line]
    assert not wrong, "\n".join(wrong)


def test_wrong_programs_are_refused(lines):
    """Each mistake in its own line, what is right not at all."""
    assert not said(lines, 3)
    assert any('"rank" to "DUB" has incompatible type "str"' in line for line in said(lines, 4))
    assert any('Unexpected keyword argument "gama" for "DUB"' in line for line in said(lines, 5))
    assert any("no_such_name" in line for line in said(lines, 6))


def test_public_names_have_real_types(lines):
    assert any("Partition" in line and "DUB" in line for line in said(lines, 7)), said(lines, 7)


def listed(word):
    """The modules of the sections of setup.cfg under the comment that contains `word`."""
    text = (ROOT / "setup.cfg").read_text().partition(word)[2].partition("\n\n#")[0]
    return {name for names in re.findall(r"^\[mypy-(.+)\]$", text, re.MULTILINE) for name in names.split(",")}


def to_come(directory):
    """The modules that would not pass if none was left out but those with kernels."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    left = listed("Still to be annotated")
    for section in [name for name in config.sections() if name.startswith("mypy-") and set(name[5:].split(",")) & left]:
        config.remove_section(section)
    with open(directory / "all.cfg", "w") as file:
        config.write(file)
    errors = [line for line in mypy("dubnb", config=directory / "all.cfg") if ": error:" in line]
    paths = {line.split(":")[0] for line in errors}
    return {path.removesuffix(".py").replace(os.sep, ".").removesuffix(".__init__") for path in paths}


@pytest.mark.slow
def test_the_list_of_modules_to_come_shrinks(tmp_path):
    """What passes by now leaves the list."""
    pytest.importorskip("mypy")
    assert listed("Still to be annotated") == to_come(tmp_path)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        print("\n".join(sorted(to_come(Path(directory)))))
