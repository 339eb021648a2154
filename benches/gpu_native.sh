#!/usr/bin/env bash
# The native runtime on a GPU, where a GPU is but neither Rust nor a network.
#
#   benches/gpu_native.sh build FOLDER            with Rust: puts what runs into a folder
#   benches/gpu_native.sh run FOLDER [DEVICE [SECONDS]]  on cuda:N or opencl:N (opencl:0): Markdown
#
# `run` takes at most nine minutes unless told otherwise: what it has no time for, it says. Tests use device 0
# of each interface.
set -euo pipefail

built() { # the binary that cargo says it made of a target
    sed -n 's/.*"name":"'"$1"'".*"executable":"\([^"]*\)".*/\1/p' | tail -1
}

build() {
    local folder example
    mkdir -p "$1"
    folder="$(cd "$1" && pwd)"
    cd "$(dirname "${BASH_SOURCE[0]}")/.."
    for example in operators step; do
        cp "$(cargo build --release -p scrimp-run --example "$example" --message-format json | built "$example")" "$folder"
    done
    cp "$(cargo test --no-run -p scrimp-run --lib --message-format json | built scrimp_run)" "$folder/conformance"
    cp "$(cargo test --no-run -p scrimp-run --test devices --message-format json | built devices)" "$folder/devices"
}

run() {
    local folder="$1" device="${2:-opencl:0}" end=$((SECONDS + ${3:-540})) name line
    left() { [ "$SECONDS" -lt "$end" ] || { printf '\nNo time was left from %s on.\n' "$1"; return 1; }; }
    limited() { timeout "$((end > SECONDS ? end - SECONDS : 1))" "$@"; }
    tests() { # what is left after a third of the time is for measurements
        timeout "$(((end - SECONDS) / 3 + 1))" "$@" 2>&1 | grep -v ' \.\.\. ok$' | tail -12 || printf 'stopped\n'
    }

    printf '# The native runtime on %s\n\n' "$device"
    printf '## Tests\n\n```text\n'
    tests "$folder/conformance" conformance
    tests "$folder/devices" gpu
    printf '```\n\n## Operators\n\n| operator | least ms | median ms |\n|---|---:|---:|\n'
    "$folder/operators" "$device" 1 wall <<<list | tr '\t' '\n' | while read -r name; do
        left "$name" || break
        line="$(limited "$folder/operators" "$device" 1 wall <<<"$name" 2>&1 | tail -1)" || true
        awk -v name="$name" '
            NF == 2 && $1 + 0 > 0 { printf "| %s | %.3f | %.3f |\n", name, $1 * 1e3, $2 * 1e3; next }
            { printf "| %s | %s | |\n", name, $0 }' <<<"${line:-no answer}"
    done
    printf '\n## Training steps\n'
    while read -r name; do
        left "$name" || break
        printf '\n```text\n'
        # shellcheck disable=SC2086 # a name and a batch
        limited "$folder/step" $name 1 4 "$device" 2>&1 | head -14 || true
        printf '```\n'
    done <<'NETWORKS'
resnet18 1
unet 1
transformer 1
mobilenet 1
resnet18 32
NETWORKS
}

case "${1:-}" in
    build | run) "$@" ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
