#!/usr/bin/env bash
# weaklink and llama.cpp on the same file and the same work, in turns; medians over the rounds, and their ratios.
#
#   benches/peers.sh MODEL.gguf [ROUNDS]        default: 3 rounds
#
# PEERS   folder with llama_batched.py                     (default: ../shared/peers beside this repository)
# PYTHON  a Python with llama-cpp-python                   (default: ${XDG_CACHE_HOME:-~/.cache}/weaklink-peers/bin/python)
# PP, TG, BATCH, THREADS   the work                        (default: 128, 32, 1,8,32, all cores)
#
# Where the peer's build dies by a signal (its AMX kernels did, built by gcc 12: RESULTS.md), it is run again without
# its repacked buffers, and the table says so: its numbers are then lower than its best.
set -euo pipefail
model=$(realpath "${1:?usage: benches/peers.sh MODEL.gguf [ROUNDS]}") rounds=${2:-3}
cd "$(dirname "$0")/.."
export PEERS=${PEERS:-../shared/peers}
python=${PYTHON:-${XDG_CACHE_HOME:-$HOME/.cache}/weaklink-peers/bin/python}
threads=${THREADS:-$(nproc)}
work=(--pp "${PP:-128}" --tg "${TG:-32}" --batch "${BATCH:-1,8,32}" --threads "$threads")
cargo build --release --quiet
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
extra=
llama() { "$python" benches/peers.py llama $extra "$model" "${work[@]}" "$@"; }
# Whether the peer runs here as it was built.
status=0
"$python" benches/peers.py llama "$model" --pp 16 --tg 2 --batch 2 --threads "$threads" >"$out/try" || status=$?
if [ "$status" -gt 128 ]; then extra=--no-extra-buffers; elif [ "$status" -ne 0 ]; then exit "$status"; fi
for round in $(seq "$rounds"); do
    for shared in "" --shared-prefix; do
        target/release/weaklink bench --model "$model" "${work[@]}" $shared -r 1 --output jsonl >>"$out/weaklink"
        llama $shared >>"$out/llama"
    done
    echo "round $round of $rounds" >&2
done
"$python" benches/peers.py table "$out/weaklink" "$out/llama" $extra
