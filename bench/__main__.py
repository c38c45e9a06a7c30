"""`python -m bench [parts]`: every speed ratio of dubnb against a named peer in one run; see bench/README.md."""

import argparse
import sys
from pathlib import Path

from threadpoolctl import threadpool_limits

from bench import (
    _report,
    _timing,
    autodebias,
    dub,
    evaluation,
    exact,
    growth,
    joint,
    mf,
    ncf,
    others,
    reading,
    rivals,
    serving,
    startup,
    threads,
)

PARTS = {
    "mf": mf.run,
    "ncf": ncf.run,
    "dub": dub.run,
    "joint": joint.run,
    "autodebias": autodebias.run,
    "exact": exact.run,
    "evaluation": lambda quick: evaluation.bench_top_k(),
    "auc": lambda quick: evaluation.bench_auc(),
    "growth": growth.run,
    "others": others.run,
    "rivals": rivals.run,
    "reading": reading.run,
    "serving": serving.run,
    "import": startup.run_import,
    "cold": startup.run_cold,
    "threads": threads.run,  # last: OpenMP's idle threads spin, and would count as CPU time of whatever came next
}


def main():
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"all by default: {' '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="a tenth of the data and fewer rounds: a smoke test")
    parser.add_argument("--out", default="bench-results", help="directory of results.json, results.md and the plots")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {sorted(unknown)[0]!r}: choose from {', '.join(PARTS)}")
    machine = _report.machine()
    print("\n".join(f"{name}: {value}" for name, value in machine.items()))
    with threadpool_limits(1):
        for part in [part for part in PARTS if part in (arguments.parts or PARTS)]:
            first = len(_timing.RECORDS)
            PARTS[part](arguments.quick)
            for record in _timing.RECORDS[first:]:
                record["part"] = part
            _report.write(Path(arguments.out), machine, _timing.RECORDS, arguments.quick)
    print(f"\nwritten to {arguments.out}")


if __name__ == "__main__":
    sys.exit(main())
