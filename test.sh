#!/usr/bin/env bash
# Every check of the repository: formatting, lints, documentation, tests. Ends with one line that
# says how many tests passed. Needs only cargo; uses cargo-nextest where it is installed. With Python,
# the solvers behind the published exact methods are installed into an environment beside the build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
log="$(mktemp)"
trap 'rm -f "$log"' EXIT

stage() {
    printf '\n== %s\n' "$*"
    "$@"
}

# Runs a stage of tests; a failure is remembered so that the last line can count everything.
failed=0
tests() {
    printf '\n== %s\n' "$*"
    "$@" 2>&1 | tee -a "$log" || failed=1
}

# One wheel carries HiGHS and CP-SAT. Without it their tests say that they are skipped.
if [ -z "${SCRIMP_PYTHON:-}${SCRIMP_HIGHS:-}${SCRIMP_ORTOOLS:-}" ] && command -v python3 >/dev/null; then
    mkdir -p "${CARGO_TARGET_DIR:-target}"
    solvers="$(cd "${CARGO_TARGET_DIR:-target}" && pwd)/solvers"
    if { [ -x "$solvers/bin/pip" ] || python3 -m venv "$solvers"; } &&
        "$solvers/bin/pip" install --quiet --disable-pip-version-check --no-deps 'ortools==9.15.*'; then
        export SCRIMP_PYTHON="$solvers"
    else
        printf 'no solvers: `pip install ortools` failed; tests that need them are skipped\n'
    fi
fi

stage cargo fmt --all --check
stage cargo clippy --workspace --all-targets -- -D warnings
if cargo nextest --version >/dev/null 2>&1; then
    tests cargo nextest run --workspace --no-fail-fast
else
    tests cargo test --workspace --no-fail-fast --lib --bins --tests --examples
fi
tests cargo test --workspace --doc
RUSTDOCFLAGS="-D warnings" stage cargo doc --workspace --no-deps

# libtest says "test result: ok. 3 passed; 0 failed; …" per binary, nextest one "Summary" in all.
awk -v failed="$failed" '
    { gsub(/\033\[[0-9;]*m/, "") }
    /^test result:/ || /^ *Summary \[/ {
        for (i = 2; i <= NF; i++) {
            if ($i ~ /^passed/) passed += $(i - 1)
            if ($i ~ /^failed/) bad += $(i - 1)
            if ($i ~ /^(ignored|skipped)/) skipped += $(i - 1)
        }
    }
    END {
        word = (failed || bad || !passed) ? "FAILED" : "ok"
        printf "\ntest result: %s. %d passed; %d failed; %d ignored\n", word, passed, bad, skipped
        exit word != "ok"
    }' "$log"
