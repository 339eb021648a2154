#!/usr/bin/env python3
"""How well a step's time is predicted: `scrimp train` at batch 8 and 50 % on the built-in networks.

    benches/predictions.py [--scrimp target/release/scrimp] [--library auto] [--threads 2] [NETWORK ...]

Times are measured afresh, then six steps are trained with the plan and without, in turn. The table has
predicted and measured seconds (the median) and peaks. Only a quiet machine says anything about seconds.
"""

import argparse
import json
import subprocess

NETWORKS = ["resnet50", "vgg16", "unet", "densenet121", "mobilenet", "transformer"]


def train(arguments, network):
    """What `scrimp train` answers."""
    command = (
        f"{arguments.scrimp} train {network} --batch 8 --budget 50% --steps 6 --compare --fresh-costs --json"
    )
    command += f" --time-limit 5s --quiet --library {arguments.library} --threads {arguments.threads}"
    return json.loads(subprocess.run(command.split(), capture_output=True, text=True, check=True).stdout)


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scrimp", default="target/release/scrimp")
    parser.add_argument("--library", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    arguments = parser.parse_args()
    print("| network | predicted | measured | off by | without a plan | measured | off by | peaks agree |")
    print("|---|---|---|---|---|---|---|---|")
    for network in arguments.networks:
        run = train(arguments, network)
        cells = []
        for prefix in ("", "base_"):
            predicted, measured = run[f"{prefix}predicted_step_seconds"], run[f"{prefix}step_seconds"]
            cells += [f"{predicted:.3f} s", f"{measured:.3f} s", f"{(predicted / measured - 1) * 100:+.1f} %"]
        exact = run["planned_peak_bytes"] == run["measured_peak_bytes"]
        print(f"| {network} | {' | '.join(cells)} | {'yes' if exact else 'no'} |", flush=True)


if __name__ == "__main__":
    main()
