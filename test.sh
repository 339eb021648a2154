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

# oneDNN's wheel is a library beside the environment's own. Without it its tests say that they are skipped.
if [ -z "${SCRIMP_ONEDNN:-}" ] && command -v python3 >/dev/null; then
    mkdir -p "${CARGO_TARGET_DIR:-target}"
    onednn="$(cd "${CARGO_TARGET_DIR:-target}" && pwd)/onednn"
    if { [ -x "$onednn/bin/pip" ] || python3 -m venv "$onednn"; } &&
        "$onednn/bin/pip" install --quiet --disable-pip-version-check --no-deps 'onednn-cpu-gomp==2023.2.*'; then
        export SCRIMP_ONEDNN="$onednn/lib"
    else
        printf 'no oneDNN: `pip install onednn-cpu-gomp` failed; tests that need it are skipped\n'
    fi
fi

# NVIDIA's compiler, which needs no GPU, compiles the kernels for CUDA too. Without it that test says that it is skipped.
if [ -z "${SCRIMP_NVRTC:-}" ] && command -v python3 >/dev/null; then
    mkdir -p "${CARGO_TARGET_DIR:-target}"
    nvrtc="$(cd "${CARGO_TARGET_DIR:-target}" && pwd)/nvrtc"
    if { [ -x "$nvrtc/bin/pip" ] || python3 -m venv "$nvrtc"; } &&
        "$nvrtc/bin/pip" install --quiet --disable-pip-version-check --no-deps 'nvidia-cuda-nvrtc==13.*' &&
        found="$(find "$nvrtc" -name 'libnvrtc.so.*' -print -quit)" && [ -n "$found" ]; then
        export SCRIMP_NVRTC="$found"
    else
        printf 'no NVRTC: `pip install nvidia-cuda-nvrtc` failed; the test that needs it is skipped\n'
    fi
fi

# A browser opens the pages that `--report` writes. Without one those tests say that they are skipped.
browser() {
    [ -n "${SCRIMP_BROWSER:-}" ] ||
        command -v chromium-headless-shell chromium chromium-browser google-chrome >/dev/null
}
if ! browser && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
        apt-get install -qq -y --no-install-recommends chromium-headless-shell; } >/dev/null 2>&1 ||
        printf 'no browser: `apt-get install chromium-headless-shell` failed; tests that need one are skipped\n'
fi

# pocl is an OpenCL device on the CPU. Without any device the tests that need one say that they are skipped.
if ! { ldconfig -p 2>/dev/null | grep -q 'libOpenCL\.so\.1' && ls /etc/OpenCL/vendors/*.icd >/dev/null 2>&1; } &&
    command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
        apt-get install -qq -y --no-install-recommends pocl-opencl-icd ocl-icd-libopencl1; } >/dev/null 2>&1 ||
        printf 'no OpenCL: `apt-get install pocl-opencl-icd` failed; tests that need a device are skipped\n'
fi
export POCL_MAX_PTHREAD_COUNT="${POCL_MAX_PTHREAD_COUNT:-1}"

stage cargo fmt --all --check
stage cargo clippy --workspace --all-targets -- -D warnings
if cargo nextest --version >/dev/null 2>&1; then
    tests cargo nextest run --workspace --no-fail-fast
else
    tests cargo test --workspace --no-fail-fast --lib --bins --tests --examples
fi
tests cargo test --workspace --doc
RUSTDOCFLAGS="-D warnings" stage cargo doc --workspace --no-deps
# Every crate that is published can be: nothing is compiled here, as its files are those tested above.
stage cargo package --workspace --exclude scrimp-python --no-verify --allow-dirty --quiet

# The package is built once, with the tests' profile, as a wheel like those that are given away. What isn't
# there is said, and its tests are skipped.
python_package() {
    local environment="$1"
    [ -x "$environment/bin/pip" ] || python3 -m venv "$environment" || return
    local pip=("$environment/bin/pip" install --quiet --disable-pip-version-check)
    "${pip[@]}" 'maturin>=1.9.4,<2' pytest numpy 'ruff==0.17.*' 'mypy==2.4.*' || return
    if [ "${SCRIMP_TORCH:-yes}" != no ]; then
        "${pip[@]}" 'torch>=2.11' || printf 'no PyTorch: tests of scrimp.torch are skipped\n'
        # One call, so that torchvision is the one for this PyTorch. No weights are downloaded.
        "${pip[@]}" 'torch>=2.11' torchvision timm transformers accelerate lightning peft diffusers ||
            printf 'no published models and no trainers: their tests are skipped\n'
    fi
    rm -rf "$environment-wheels"
    "$environment/bin/maturin" build --quiet --profile dev --manifest-path crates/python/Cargo.toml \
        --out "$environment-wheels" &&
        wheel_installs "$environment-wheels"/*.whl "$environment-clean" &&
        "${pip[@]}" --no-index --no-deps --force-reinstall "$environment-wheels"/*.whl ||
        { failed=1; return 1; }
}

# The wheel is one for every Python from 3.10 on and for other Linux systems, and needs nothing else: no
# Rust, no index of packages. Tried with each Python that is there.
wheel_installs() {
    local wheel="$1" environment="$2" python
    case "$wheel" in
        *-linux_*.whl) printf '%s is for this system only\n' "$wheel"; return 1 ;;
        *-cp310-abi3-*.whl) ;;
        *) printf '%s is for one version of Python only\n' "$wheel"; return 1 ;;
    esac
    for python in python3 python3.{10..14}; do
        "$python" -m venv --clear "$environment" 2>/dev/null || continue
        env -i "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-index "$wheel" &&
            env -i "$environment/bin/python" -c '
import scrimp
problem = scrimp.Problem("chain")
made = problem.task("a", [problem.given("x", 100)], 200, seconds=1.0)
problem.keep(problem.task("b", [made], 100, seconds=2.0))
assert scrimp.plan(problem, budget="100%").peak == 300' || return
    done
}
if python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    mkdir -p "${CARGO_TARGET_DIR:-target}"
    python="$(cd "${CARGO_TARGET_DIR:-target}" && pwd)/python"
    if stage python_package "$python"; then
        settings=(--config crates/python/pyproject.toml)
        stage "$python/bin/ruff" format --check "${settings[@]}" crates/python benches
        stage "$python/bin/ruff" check "${settings[@]}" crates/python benches
        if "$python/bin/python" -c 'import torch' 2>/dev/null; then
            MYPYPATH=crates/python/python:crates/python/tests stage "$python/bin/mypy" \
                --config-file crates/python/pyproject.toml --explicit-package-bases \
                crates/python/python/scrimp crates/python/tests crates/python/examples benches/gpu.py
        fi
        tests "$python/bin/python" -m pytest -q -p no:cacheprovider crates/python/tests
    else
        printf 'no Python package: its tests are skipped\n'
    fi
fi

# libtest says "test result: ok. 3 passed; 0 failed; …" per binary, nextest one "Summary" in all, pytest
# "3 passed, 1 skipped in 0.50s".
awk -v failed="$failed" '
    { gsub(/\033\[[0-9;]*m/, "") }
    /^test result:/ || /^ *Summary \[/ || /^[0-9]+ (passed|failed|skipped|error).* in [0-9.]+s/ {
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
