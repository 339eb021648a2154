#!/usr/bin/env python3
r"""Training within a budget: `scrimp train` at batch 8 on the built-in networks.

    benches/training.py [--scrimp target/release/scrimp] [--library auto] [--threads 2] [NETWORK[:BUDGET] ...]

In each round costs are measured afresh, a plan is made, and steps are trained with it and without, in
turn. There are as many rounds of each network as fit into `--seconds`, at least one, or `--rounds`. The
table has peaks of plans, and compares seconds with what was planned: medians over the rounds, of medians
over steps, with the rounds' least and greatest prediction errors. Only a quiet machine says anything
about seconds.

The budget is 50 % where none is given. With `--swap`, which may be given several times, each network is
trained with each of the memories, and the table has the seconds that computing waits for copies. How
well steps with copies are predicted:

    benches/training.py --rounds 5 --swap ram=8GiB --swap disk:/tmp=8GiB resnet50:131MB unet:80MB \
        transformer:112MB mobilenet:40%

The last columns are the least and the most of the processors' time, over the rounds, that other programs and
other guests of the same host took while costs were measured and during the steps.
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
WITH_COPIES = ["waiting predicted, s", "waiting, s"]
OTHERS = ["others while measuring, %", "others, %"]


def train(arguments, network, memory):
    """What `scrimp train` answers."""
    name, _, budget = network.partition(":")
    command = f"{arguments.scrimp} train {name} --batch 8 --budget {budget or '50%'} --compare --fresh-costs"
    command += f" --json --quiet --steps {arguments.steps} --time-limit 5s"
    command += f" --library {arguments.library} --threads {arguments.threads}"
    if memory:
        command += f" --swap {memory}"
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr.strip())
    return json.loads(done.stdout)


def rounds(arguments, network, memory):
    """The answers of as many runs as were asked for or there is time for."""
    start, runs = time.monotonic(), []
    while True:
        runs.append(train(arguments, network, memory))
        spent = time.monotonic() - start
        late = spent * (len(runs) + 1) / len(runs) > arguments.seconds
        if len(runs) == arguments.rounds or (arguments.rounds is None and late):
            return runs


def row(runs, memory):
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

    def spread(key):
        known = sorted(run[key] for run in runs if run[key] is not None)
        return f"{known[0]:.0f} to {known[-1]:.0f}" if known else "?"

    copies = [f"{median('predicted_waiting_seconds'):.3f}"]
    copies.append(f"{statistics.median(run['seconds_per_step']['waiting'] for run in runs):.3f}")
    return [
        runs[0]["name"] + (f", {memory}" if memory else ""),
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
        *(copies if memory else []),
        spread("others_percent_while_measuring"),
        spread("others_percent"),
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
    parser.add_argument("--rounds", type=int, help="of each network, in place of --seconds")
    parser.add_argument("--swap", action="append", default=[], metavar="MEMORY", help="as scrimp's --swap")
    parser.add_argument("networks", nargs="*", default=NETWORKS, metavar="NETWORK[:BUDGET]")
    arguments = parser.parse_args()
    heads = HEADS + (WITH_COPIES if arguments.swap else []) + OTHERS
    print(f"| {' | '.join(heads)} |")
    print(f"|{'---|' * len(heads)}")
    for network in arguments.networks:
        for memory in arguments.swap or [None]:
            runs = rounds(arguments, network, memory)
            print(f"| {' | '.join(row(runs, memory))} |", flush=True)


if __name__ == "__main__":
    main()
