#!/bin/bash
# Measures on one machine with N GPUs, in about 15 minutes, what no CPU can tell: divided saves and loads, the start,
# compile caches, and compilation with tensor parallelism.  bash benchmarks/gpu.sh [N]
# It has never run on a GPU. Each line of the output says what it measures.
set -euo pipefail
cd "$(dirname "$0")/.."
n=${1:-$(nvidia-smi -L | wc -l)}
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
export TORCHINDUCTOR_CACHE_DIR=$work/cache PYTHONPATH=$PWD
python -c "
from pathlib import Path
from benchmarks.train_shards import write_random_shards
write_random_shards(Path('$work/shards'), 40_000_000)"

measure() { # NAME ARGUMENTS of train: seconds to the first step, of the first and the median step, and what was said of it
    local name=$1 began=$SECONDS
    shift
    timeout 240 torchrun --standalone --nproc-per-node "$n" -m train --shards "$work/shards" --model 1b --seq-len 2048 \
        --global-batch $((n * 2)) --micro-batch 2 --schedule constant --save-every never "$@" >"$work/$name.txt" 2>&1 ||
        { tail -n 5 "$work/$name.txt"; return 0; }
    echo "$name: $((SECONDS - began)) s in all"
    grep -E "saved|resumed|blocks are|communicators" "$work/$name.txt" || true
    python - "${@: -1}" <<'PY'
import json, statistics, sys
seconds = [json.loads(line)["seconds"] for line in open(f"{sys.argv[1]}/metrics.jsonl")]
print(f"  first step {seconds[0]:.2f} s, median {statistics.median(seconds[1:]):.3f} s")
PY
}

echo "== saves and loads: all ranks are replicas, then all share; 'saved' has bytes and seconds"
for shard in 1 "$n"; do
    for steps in 10 20; do
        measure "save-$shard-$steps" --shard "$shard" --save-every 10 --steps "$steps" --out "$work/save-$shard"
    done
    find "$work/save-$shard/checkpoints" -name 'rank-*' -printf '  %f %s bytes\n' | sort -u
done
echo "== start: gloo connects at once, then when used; 'communicators' has the seconds of each group"
for lazy in 0 1; do TORCH_GLOO_LAZY_INIT=$lazy measure "lazy-$lazy" --steps 3 --out "$work/lazy-$lazy"; done
echo "== compile cache: cold, then warm in another folder"
rm -rf "$work/cache" && measure cold --steps 3 --out "$work/cold"
cp -r "$work/cache" "$work/copy" && TORCHINDUCTOR_CACHE_DIR=$work/copy measure warm --steps 3 --out "$work/warm"
echo "== attention inside documents, compiled"
measure documents --attention document --compile --steps 12 --out "$work/documents"
if ((n > 1)); then
    echo "== tensor parallel with full recomputation: eager, compiled"
    for compile in no-compile compile; do
        measure "tensor-$compile" --tensor 2 --checkpointing full "--$compile" --steps 12 --out "$work/$compile"
    done
fi
