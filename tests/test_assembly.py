"""Guards against a silent loss of speed: the compiled epochs still hold packed square roots and fused multiply-adds."""

import os
import platform
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
from dubnb.backbones import {backbone}
from dubnb.stream import empty
if not llvm.get_host_cpu_features().get("fma"):
    sys.exit("no fma")
trainer = BACKBONES["{backbone}"].new(20, 10, 8, 0, "c").trainer(16)
trainer.epoch(empty(64), 1, losses.LOSSES["bce"], 1e-3, 1e-4)
print(*{backbone}._epoch.inspect_asm().values())
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
