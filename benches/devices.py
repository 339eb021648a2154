#!/usr/bin/env python3
"""Trains built-in networks on two CPU devices under budgets, beside each device alone.

    SCRIMP_ONEDNN=… benches/devices.py [--scrimp target/release/scrimp] [--limit 5] [NETWORK ...]

One device has one thread and oneDNN's kernels, the other one thread and scrimp's own. Every network is
profiled on this machine. A budget is the same percentage for both, of what planning can change when
everything runs on that device alone. The columns of the first table, like those of XEngine's tables 1
and 4, are for 100 %; the second, like its table 2, has all budgets. Needs two idle cores, and takes
about eight minutes.

- alone: milliseconds of a step on each device alone, without a budget: predicted / measured.
- predicted, measured: milliseconds of a step under the plan; measured is the median over steps.
- off by: measured over predicted, less one.
- beside the better: milliseconds as the planner counts them over those of the better device alone within the
  same budget, less one. Without a number, neither device has a plan of its own there.
- overhead: measured milliseconds over those of the same network's plan at 100 %, less one.
- planning: seconds.
"""

import argparse
import json
import statistics
import subprocess

FIRST, SECOND = "cpu:0/1@onednn", "cpu:1/1@native"
NETWORKS = {
    "resnet18": ["--batch", "4", "--image", "96"],
    "unet": ["--batch", "1"],
    "vgg16": ["--batch", "2", "--image", "64"],
    "transformer": ["--batch", "2"],
}
BUDGETS = [100, 50, 25]
STEPS = 5


def scrimp(arguments, command, network, devices, percent, *more):
    """What the command answers."""
    names = [device.split("/")[0] for device in devices]
    budget = ",".join(f"{name}={percent}%" for name in names)
    line = [arguments.scrimp, command, network, *NETWORKS[network], "--devices", ",".join(devices)]
    line += ["--budget", budget, "--costs", "measured", "--time-limit", str(arguments.limit), *more]
    done = subprocess.run([*line, "--json", "--quiet"], capture_output=True, text=True)
    return json.loads(done.stdout)


def trained(arguments, network, devices, percent):
    """The step of a plan (milliseconds planned, predicted and measured; planning seconds), or why none is."""
    answer = scrimp(arguments, "train", network, devices, percent, "--steps", str(STEPS))
    if "error" in answer:
        return None, answer["error"]["message"]
    times = [1e3 * answer[key] for key in ("makespan", "predicted_step_seconds", "step_seconds")]
    return (*times, answer["solve_seconds"]), None


def alone(arguments, network, percent):
    """Each device alone within a budget: predicted milliseconds, or none."""
    answers = [scrimp(arguments, "plan", network, [device], percent) for device in (FIRST, SECOND)]
    return [None if "error" in answer else 1e3 * answer["makespan"] for answer in answers]


def percent(ratio):
    """A ratio as a difference in percent."""
    return f"{100 * (ratio - 1):+.1f} %"


def main():
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scrimp", default="target/release/scrimp")
    parser.add_argument("--limit", type=float, default=5, help="seconds for each plan")
    parser.add_argument("networks", nargs="*", default=[])
    arguments = parser.parse_args()
    first, rows, off = [], [], []
    for network in arguments.networks or NETWORKS:
        singles = [trained(arguments, network, [device], 100)[0] for device in (FIRST, SECOND)]
        whole = None
        for budget in BUDGETS:
            both, why = trained(arguments, network, [FIRST, SECOND], budget)
            if both is None:
                rows.append([network, f"{budget} %", "–", "–", "–", "–", "–", why])
                continue
            planned, predicted, measured, planning = both
            whole = whole or measured
            better = min((ms for ms in alone(arguments, network, budget) if ms), default=None)
            off.append(measured / predicted)
            cells = [f"{predicted:.1f}", f"{measured:.1f}", percent(measured / predicted)]
            cells += [percent(planned / better) if better else "–"]
            cells += [percent(measured / whole), f"{planning:.1f} s"]
            rows.append([network, f"{budget} %", *cells])
            if budget == 100:
                each = [f"{single[1]:.1f} / {single[2]:.1f}" for single in singles]
                least = min(single[2] for single in singles)
                first.append([network, *each, f"{predicted:.1f} / {measured:.1f}", percent(measured / least)])
    print("| network | oneDNN alone, ms | own kernels alone, ms | both, ms | measured beside the better |")
    print("|---|---|---|---|---|")
    for row in first:
        print("| " + " | ".join(row) + " |")
    print()
    print(
        "| network | budget | predicted, ms | measured, ms | off by "
        "| beside the better | overhead | planning |"
    )
    print("|" + "---|" * 8)
    for row in rows:
        print("| " + " | ".join(row) + " |")
    if off:
        apart = [abs(ratio - 1) for ratio in off]
        print(
            f"\nPredicted and measured differ by {100 * statistics.median(apart):.1f} % in the median, ",
            end="",
        )
        print(f"by {100 * max(apart):.1f} % at most.")


if __name__ == "__main__":
    main()
