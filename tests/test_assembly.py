"""Guards against a silent loss of speed: the compiled epochs still hold packed square roots and fused multiply-adds."""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.needs_jit,
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="looks for x86-64 instructions"),
]
ROOT = Path(__file__).resolve().parents[1]
# Compiled afresh, because a kernel that came from the cache has no assembly to show.
COMPILE = """
import sys
import llvmlite.binding as llvm
import numpy as np
from dubnb import losses
from dubnb.backbones import BACKBONES
from dubnb.backbones import mf
from dubnb.objective.terms import empty_stream
if not llvm.get_host_cpu_features().get("fma"):
    sys.exit("no fma")
trainer = BACKBONES["{backbone}"].new((20, 10), 8, 0, "c").trainer(16)
trainer.epoch(empty_stream(64), 1, losses.LOSSES["bce"], 1e-3, 1e-4)
print(*mf.train_epoch.inspect_asm().values())
"""


def assembly_of_epoch(backbone, cache):
    environment = os.environ | {"DUBNB_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", COMPILE.format(backbone=backbone)]
    process = subprocess.run(command, capture_output=True, text=True, env=environment)
    if process.stderr.strip() == "no fma":
        pytest.skip("this CPU has no fused multiply-add")
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_epochs_are_vectorised(backbone, tmp_path):
    assembly = assembly_of_epoch(backbone, tmp_path)
    for what, instruction in (("packed square roots", "vsqrtps"), ("packed divisions", "vdivps")):
        assert f"\t{instruction}\t" in assembly, f"no {what} in {backbone}'s epoch: Adam's step is scalar"
    packed = [line for line in assembly.splitlines() if line.split("\t")[1:2] and "ps" in line.split("\t")[1]]
    assert any(line.split("\t")[1].startswith("vfmadd") for line in packed), f"no packed FMA in {backbone}'s epoch"
    assert any("ymm" in line or "zmm" in line for line in packed), f"vectors of 128 bits only in {backbone}'s epoch"


# One small epoch of mf, ten times over, counted by callgrind between "on" and "off". The CPU is named so that the
# kernel is the same on every x86-64 machine; the first run, without valgrind, compiles it into the cache.
COUNT = """
import os, subprocess, sys
import numpy as np
from dubnb import losses
from dubnb.backbones import MF
from dubnb.objective.terms import empty_stream
trainer = MF.new((400, 100), 50, 0, "c").trainer(256)
random, samples = np.random.default_rng(0), empty_stream(4096)
samples.users[:], samples.items[:] = random.integers(0, 400, 4096), random.integers(0, 100, 4096)
samples.targets[:] = random.integers(0, 2, 4096)

def epoch():
    trainer.epoch(samples, 1, losses.LOSSES["bce"], 1e-3, 1e-4)

def count(state):
    if len(sys.argv) > 1:
        subprocess.run(["callgrind_control", "-i", state, str(os.getpid())], check=True, capture_output=True)

epoch()
count("on")
for _ in range(10):
    epoch()
count("off")
"""
INSTRUCTIONS_PER_SAMPLE = 853  # measured; 895 in C, 1,173 before rows were spans


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("callgrind_control"), reason="counts instructions with valgrind")
def test_an_epoch_takes_no_more_instructions_than_it_did(tmp_path):
    environment = os.environ | {"DUBNB_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), "NUMBA_CPU_NAME": "haswell"}
    environment |= {"NUMBA_CPU_FEATURES": "", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", COUNT], check=True, env=environment)
    callgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={tmp_path / 'out'}"]
    command = [*callgrind, sys.executable, "-c", COUNT, "counted"]
    process = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    per_sample = int(re.search(r"Collected : (\d+)", process.stderr)[1]) / 10 / 4096
    assert 0.5 * INSTRUCTIONS_PER_SAMPLE < per_sample < 1.1 * INSTRUCTIONS_PER_SAMPLE
