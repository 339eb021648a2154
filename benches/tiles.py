#!/usr/bin/env python3
"""What tiles cost: time per pixel of large images, overhead at half of the memory, and a language model.

    benches/tiles.py [--scrimp target/release/scrimp] [--library auto] [--threads 2] [--steps 3]

The first table trains `vgg16-trunk` on images from 512² to 2048² within 1/4 GiB for 512² and in proportion to
the pixels above, the second one networks within half of what they need without a plan, each without tiles
(`off`) and with `--tile auto`; the third a transformer whose vocabulary is 30 times its width, without tiles
and with 4 and 8. Seconds are medians over the steps of one run, by the plan that measured costs make. Only a
quiet machine says anything about seconds.
"""

import argparse
import json
import subprocess

TRUNK = "vgg16-trunk --batch 1 --image"
GPT = "transformer --layers 2 --width 256 --heads 4 --sequence 512 --vocabulary 7680 --dropout 0 --batch 2"
NETWORKS = [f"{TRUNK} 768", "unet --batch 1 --image 384", GPT]


def run(arguments, command, steps):
    """What `scrimp` answers, or its refusal."""
    words = f"{arguments.scrimp} {command} --json --quiet --time-limit 10s --library {arguments.library}"
    words += f" --threads {arguments.threads}"
    if steps:
        words += f" --steps {steps} --costs {arguments.costs}"
    done = subprocess.run(words.split(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"refused": done.stderr.strip().splitlines()[-1]}
    return json.loads(done.stdout)


def peak(arguments, model):
    """Bytes that a step needs without a plan and without tiles."""
    answer = run(arguments, f"plan {model} --tile off --budget 100%", 0)
    return answer["base_peak_bytes"]


def parts(answer):
    """How many tiles, and what their halos add."""
    segments = answer.get("segments", [])
    words = [f"{'×'.join(map(str, part['tiles']))} (+{part['halo_percent']:.0f} %)" for part in segments]
    return ", ".join(words) or "none"


def row(cells):
    """Prints a line of a table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def table(*heads):
    """Prints the head of a table."""
    print()
    row(heads)
    row("---" for _ in heads)


def trained(arguments, model, budget, tile):
    """Peak in MiB, seconds, and tiles of a step, or why there is none."""
    answer = run(arguments, f"train {model} --budget {budget}B --tile {tile}", arguments.steps)
    if "refused" in answer:
        return None, [answer["refused"], "", ""]
    seconds = answer["step_seconds"]
    return seconds, [f"{answer['planned_peak_bytes'] / 2**20:.0f}", f"{seconds:.3f}", parts(answer)]


def main():
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scrimp", default="target/release/scrimp")
    parser.add_argument("--library", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="of each run")
    parser.add_argument("--costs", default="static", help="static or measured")
    parser.add_argument("--most", type=int, default=2048, help="side of the largest image")
    arguments = parser.parse_args()
    table("image", "budget, MiB", "peak, MiB", "step, s", "tiles", "ns per pixel")
    for side in (512, 1024, 2048):
        if side <= arguments.most:
            budget = side * side * 1024
            seconds, cells = trained(arguments, f"{TRUNK} {side}", budget, "auto")
            each = f"{seconds / side**2 * 1e9:.0f}" if seconds else ""
            row([f"{side}²", budget // 2**20, *cells, each])
    table("network", "tiles asked", "budget, MiB", "peak, MiB", "step, s", "tiles", "over no plan, %")
    for model in NETWORKS:
        whole = peak(arguments, model)
        base = None
        for tile, budget in (("off", whole), ("off", whole // 2), ("auto", whole // 2)):
            seconds, cells = trained(arguments, model, budget, tile)
            base = base or seconds
            over = f"{(seconds / base - 1) * 100:+.1f}" if seconds else ""
            row([model, tile, budget // 2**20, *cells, over])
    table("language model", "tiles asked", "budget, MiB", "peak, MiB", "step, s", "tiles", "over no tiles, %")
    whole, base = peak(arguments, GPT), None
    for tile in ("off", 4, 8):
        seconds, cells = trained(arguments, GPT, whole, tile)
        base = base or seconds
        over = f"{(seconds / base - 1) * 100:+.1f}" if seconds else ""
        row([GPT, tile, whole // 2**20, *cells, over])


if __name__ == "__main__":
    main()
