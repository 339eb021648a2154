#!/usr/bin/env python3
"""Training at half of the memory: `scrimp train` at batch 8 and 50 % on the built-in networks.

    benches/training.py [--scrimp target/release/scrimp] [--library auto] [--threads 2] [NETWORK ...]

In each round costs are measured afresh, a plan is made, and steps are trained with it and without, in turn.
There are as many rounds of each network as fit into `--seconds`, at least one. The table has peaks of plans,
and compares seconds with what was planned: medians over the rounds, of medians over steps, with the rounds'
least and greatest prediction errors. Only a quiet machine says anything about seconds.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

NETWORKS = ["resnet50", "vgg16", "unet", "densenet121", "mobilenet", "transformer"]
HEADS = [
    "network",
    "peak without a plan, MiB",
    "budget, MiB",
    "peak of the plan, MiB",
    "same bits",
    "runs again",
    "overhead planned, %",
    "predicted, %",
    "measured, %",
    "step without a plan, s",
    "predicted off by, %",
    "step, s",
    "predicted off by, %",
    "planning, s",
    "rounds",
]


def train(arguments, network):
    """What `scrimp train` answers."""
    command = (
        f"{arguments.scrimp} train {network} --batch 8 --budget 50% --compare --fresh-costs --json --quiet"
    )
    command += f" --steps {arguments.steps} --time-limit 5s"
    command += f" --library {arguments.library} --threads {arguments.threads}"
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr.strip())
    return json.loads(done.stdout)


def rounds(arguments, network):
    """The answers of as many runs as there is time for."""
    start, runs = time.monotonic(), []
    while True:
        runs.append(train(arguments, network))
        spent = time.monotonic() - start
        if spent * (len(runs) + 1) / len(runs) > arguments.seconds:
            return runs


def row(runs):
    """The cells of one network."""

    def median(key):
        return statistics.median(run[key] for run in runs)

    def mebibytes(key):
        return f"{median(key) / 2**20:.0f}"

    def times(prefix):
        measured = f"{prefix}step_seconds"
        off = sorted((run[f"{prefix}predicted_step_seconds"] / run[measured] - 1) * 100 for run in runs)
        spread = f" ({off[0]:+.1f} to {off[-1]:+.1f})" if len(off) > 1 else ""
        return [f"{median(measured):.3f}", f"{statistics.median(off):+.1f}{spread}"]

    def always(what):
        return "yes" if all(map(what, runs)) else "no"

    return [
        runs[0]["name"],
        mebibytes("base_peak_bytes"),
        mebibytes("budget_bytes"),
        mebibytes("planned_peak_bytes"),
        always(lambda run: run["bit_identical"]),
        f"{median('recomputed'):.0f} of {runs[0]['tasks']}",
        f"{median('overhead_percent'):+.1f}",
        f"{median('predicted_slowdown_percent'):+.1f}",
        f"{median('slowdown_percent'):+.1f}",
        *times("base_"),
        *times(""),
        f"{median('solve_seconds'):.1f}",
        str(len(runs)),
    ]


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scrimp", default="target/release/scrimp")
    parser.add_argument("--library", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--steps", type=int, default=9, help="with the plan and as many without, in each round"
    )
    parser.add_argument("--seconds", type=float, default=120, help="most for the rounds of one network")
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    arguments = parser.parse_args()
    print(f"| {' | '.join(HEADS)} |")
    print(f"|{'---|' * len(HEADS)}")
    for network in arguments.networks:
        print(f"| {' | '.join(row(rounds(arguments, network)))} |", flush=True)


if __name__ == "__main__":
    main()
