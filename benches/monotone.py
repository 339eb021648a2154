"""Sweeps 20 budgets of each instance and tells where a larger budget has a slower plan, or loses one.

    python benches/monotone.py SCRIMP TIME_LIMIT free|fixed INSTANCE.json…

Ends with 1 if there is such a place.
"""

import json
import subprocess
import sys


def breaches(scrimp: str, limit: str, order: str, path: str) -> tuple[list[str], str]:
    """What is wrong with one instance's sweep, and its added times in percent."""
    command = [scrimp, "sweep", path, "-b", "24%..100%:4%", "--order", order]
    done = subprocess.run([*command, "--time-limit", limit, "--json", "-q"], capture_output=True, text=True)
    answer = json.loads(done.stdout)
    if "curves" not in answer:
        return [f"no sweep: {done.stderr.strip()}"], ""
    budgets = sorted(answer["curves"][0]["budgets"], key=lambda entry: entry["budget_bytes"])
    wrong, row, best = [], [], None
    for entry in budgets:
        cost, asked = entry["cost"], entry["asked"]
        if cost is None:
            row.append("-")
            if best is not None:
                wrong.append(f"none at {asked}")
            continue
        if entry["peak_bytes"] > entry["budget_bytes"]:
            wrong.append(f"over the budget at {asked}")
        if best is not None and cost > best * (1 + 1e-12):
            wrong.append(f"slower at {asked}")
        best = cost
        row.append(f"{entry['overhead_percent']:.2f}")
    return wrong, " ".join(row)


def main() -> int:
    """Sweep every instance."""
    scrimp, limit, order, *paths = sys.argv[1:]
    failed = False
    for path in paths:
        wrong, row = breaches(scrimp, limit, order, path)
        print(path.rsplit("/", 1)[-1], ", ".join(wrong) or "monotone", row, flush=True)
        failed |= bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
