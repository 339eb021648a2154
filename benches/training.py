#!/usr/bin/env python3
"""Training at half of the memory: `scrimp train` at batch 8 and 50 % on the built-in networks.

    benches/training.py [--scrimp target/release/scrimp] [--library auto] [--threads 2] [NETWORK ...]

Costs are measured afresh, then six steps are trained with the plan and without, in turn. The table compares
peaks and seconds (medians) with what was planned. Only a quiet machine says anything about seconds.
"""

import argparse
import json
import subprocess
import sys

NETWORKS = ["resnet50", "vgg16", "unet", "densenet121", "mobilenet", "transformer"]
HEADS = [
    "network",
    "peak without a plan, MiB",
    "budget, MiB",
    "measured peak, MiB",
    "as planned",
    "same bits",
    "runs again",
    "overhead planned, %",
    "overhead measured, %",
    "step without a plan, s",
    "predicted off by, %",
    "step, s",
    "predicted off by, %",
    "planning, s",
]


def train(arguments, network):
    """What `scrimp train` answers."""
    command = (
        f"{arguments.scrimp} train {network} --batch 8 --budget 50% --steps 6 --compare --fresh-costs --json"
    )
    command += f" --time-limit 5s --quiet --library {arguments.library} --threads {arguments.threads}"
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr.strip())
    return json.loads(done.stdout)


def row(run):
    """The cells of one network."""

    def mebibytes(key):
        return f"{run[key] / 2**20:.0f}"

    def times(prefix):
        predicted, measured = run[f"{prefix}predicted_step_seconds"], run[f"{prefix}step_seconds"]
        return [f"{measured:.3f}", f"{(predicted / measured - 1) * 100:+.1f}"]

    return [
        run["name"],
        mebibytes("base_measured_peak_bytes"),
        mebibytes("budget_bytes"),
        mebibytes("measured_peak_bytes"),
        "yes" if run["planned_peak_bytes"] == run["measured_peak_bytes"] else "no",
        "yes" if run["bit_identical"] else "no",
        f"{run['recomputed']} of {run['tasks']}",
        f"{run['overhead_percent']:+.1f}",
        f"{run['slowdown_percent']:+.1f}",
        *times("base_"),
        *times(""),
        f"{run['solve_seconds']:.1f}",
    ]


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scrimp", default="target/release/scrimp")
    parser.add_argument("--library", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    arguments = parser.parse_args()
    print(f"| {' | '.join(HEADS)} |")
    print(f"|{'---|' * len(HEADS)}")
    for network in arguments.networks:
        print(f"| {' | '.join(row(train(arguments, network)))} |", flush=True)


if __name__ == "__main__":
    main()
