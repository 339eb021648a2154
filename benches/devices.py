#!/usr/bin/env python3
"""Trains built-in networks on two CPU devices under budgets, beside each device alone.

    SCRIMP_ONEDNN=… benches/devices.py [--scrimp target/release/scrimp] [--limit 5] [NETWORK ...]

One device has one thread and oneDNN's kernels, the other one thread and scrimp's own. Every network is
profiled on this machine, on each device alone and on both at once. A budget is the same percentage for both,
of what planning can change when everything runs on that device alone. The columns are like those of XEngine's
tables 1, 2 and 4. Needs two idle cores, and takes about eight minutes.

- oneDNN alone, own kernels alone: milliseconds of a step on each device alone within the same budget:
  predicted / measured. Measured is the median over steps.
- both: the same on both devices.
- off by: measured over predicted on both devices, less one.
- beside the better: measured on both devices over measured on the better one alone, less one.
- devices: how many of the two the plan uses.
- slowed: how many times as long each device takes for its tasks while the other computes, too.
- others: the most of the processors' time that others took while both were trained or measured.
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
STEPS = 7
COLUMNS = [
    "network",
    "budget",
    "oneDNN alone, ms",
    "own kernels alone, ms",
    "both, ms",
    "off by",
    "beside the better",
    "devices",
    "slowed",
    "others",
    "planning",
]


def trained(arguments, network, devices, percent):
    """What the command answers for a few steps on these devices."""
    names = [device.split("/")[0] for device in devices]
    budget = ",".join(f"{name}={percent}%" for name in names)
    line = [arguments.scrimp, "train", network, *NETWORKS[network], "--devices", ",".join(devices)]
    line += ["--budget", budget, "--costs", "measured", "--time-limit", str(arguments.limit)]
    done = subprocess.run([*line, "--steps", str(STEPS), "--json", "--quiet"], capture_output=True, text=True)
    return json.loads(done.stdout)


def times(answer):
    """Milliseconds of a step, predicted and measured; none without a plan."""
    if "error" in answer:
        return None
    return [1e3 * answer[key] for key in ("predicted_step_seconds", "step_seconds")]


def shown(answer):
    """The same for a table."""
    return "–" if times(answer) is None else " / ".join(f"{ms:.1f}" for ms in times(answer))


def percent(ratio):
    """A ratio as a difference in percent."""
    return f"{100 * (ratio - 1):+.1f} %"


def row(network, budget, singles, both):
    """A row of the table."""
    start = [network, f"{budget} %", *map(shown, singles)]
    if times(both) is None:
        return [*start, both["error"]["message"], *["–"] * 6]
    predicted, measured = times(both)
    better = min((times(single)[1] for single in singles if times(single)), default=None)
    used = [device for device in both["measured_devices"].values() if device["busy_seconds"] > 0]
    slowed = [device["slowed"] for device in both["devices"].values()]
    taken = [both[key] or 0 for key in ("others_percent", "others_percent_while_measuring")]
    return [
        *start,
        shown(both),
        percent(measured / predicted),
        percent(measured / better) if better else "–",
        str(len(used)),
        " ".join("–" if factor is None else f"{factor:.2f}" for factor in slowed),
        f"{max(taken):.0f} %",
        f"{both['solve_seconds']:.1f} s",
    ]


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scrimp", default="target/release/scrimp")
    parser.add_argument("--limit", type=float, default=5, help="seconds for each plan")
    parser.add_argument("networks", nargs="*", default=[])
    arguments = parser.parse_args()
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    apart = []
    for network in arguments.networks or NETWORKS:
        for budget in BUDGETS:
            singles = [trained(arguments, network, [device], budget) for device in (FIRST, SECOND)]
            both = trained(arguments, network, [FIRST, SECOND], budget)
            print("| " + " | ".join(row(network, budget, singles, both)) + " |", flush=True)
            if times(both):
                predicted, measured = times(both)
                apart.append(abs(measured / predicted - 1))
    if apart:
        print(
            f"\nPredicted and measured differ by {100 * statistics.median(apart):.1f} % in the median, "
            f"by {100 * max(apart):.1f} % at most."
        )


if __name__ == "__main__":
    main()
