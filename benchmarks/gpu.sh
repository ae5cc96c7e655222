#!/bin/bash
# Measures on one machine with N GPUs, in at most 15 minutes, what no CPU can tell: divided saves and loads, the start,
# compile caches, and compilation with tensor parallelism.  bash benchmarks/gpu.sh [N]
# It has never run on a GPU; with MODEL=debug it runs on a CPU. Each line of the output says what it measures. A step that
# fails says so and the next one begins; none begins after LIMIT seconds. The estimates below are for one H100, guessed
# from 25 s a start, 60 s a cold compilation and 1.5 GB/s of disk. Needs 40 GB in TMPDIR, and of packages torch, numpy,
# msgspec, safetensors and xxhash (also on PYTHONPATH, as `pip install --target` leaves a carried wheel).
set -euo pipefail
cd "$(dirname "$0")/.."
n=${1:-$(nvidia-smi -L | wc -l)} model=${MODEL:-1b} limit=${LIMIT:-840}
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
export TORCHINDUCTOR_CACHE_DIR=$work/cache PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4} PYTORCH_ALLOC_CONF=expandable_segments:True
unset TRITON_CACHE_DIR # else the code of Triton would be warm when all else is cold
python -c "import torch, sys; print(sys.version.split()[0], torch.__version__, torch.cuda.device_count(), 'GPUs')"
python -c "
from pathlib import Path
from benchmarks.train_shards import write_random_shards
write_random_shards(Path('$work/shards'), 4_000_000)" # 5 s

measure() { # NAME ARGUMENTS of train: seconds to the first step, of the first and the median step, and what was said of it
    local name=$1 began=$SECONDS left=$((limit + 60 - SECONDS))
    shift
    if ((SECONDS > limit)); then echo "$name: left out, the time is up"; return 0; fi
    timeout -k 10 $((left < 240 ? left : 240)) python -m torch.distributed.run --standalone --nproc-per-node "$n" \
        -m train --shards "$work/shards" --model "$model" --seq-len 2048 --global-batch $((n * 2)) --micro-batch 2 \
        --schedule constant --val-every 0 --save-every never "$@" >"$work/$name.txt" 2>&1 ||
        { echo "$name: failed after $((SECONDS - began)) s"; tail -n 15 "$work/$name.txt"; return 0; }
    echo "$name: $((SECONDS - began)) s in all"
    grep -E "saved|resumed|blocks are|communicators" "$work/$name.txt" || true
    python - "${@: -1}" <<'PY' || true
import json, statistics, sys
seconds = [json.loads(line)["seconds"] for line in open(f"{sys.argv[1]}/metrics.jsonl")]
print(f"  first step {seconds[0]:.2f} s, median {statistics.median(seconds[1:] or seconds):.3f} s")
PY
}

echo "== start: gloo connects at once, then when used; 'communicators' has the seconds of each group" # 90 + 45 s
for lazy in 0 1; do TORCH_GLOO_LAZY_INIT=$lazy measure "lazy-$lazy" --steps 3 --out "$work/lazy-$lazy"; done
echo "== compile cache: cold, then warm in another folder" # 90 + 45 s
rm -rf "$work/cache" && measure cold --steps 3 --out "$work/cold"
if [ -d "$work/cache" ]; then # a CPU compiles nothing unless it is asked to
    cp -r "$work/cache" "$work/copy" && TORCHINDUCTOR_CACHE_DIR=$work/copy measure warm --steps 3 --out "$work/warm"
fi
echo "== saves and loads: all ranks are replicas, then all share; 'saved' has bytes and seconds" # 50 + 60 s, for each of two
for shard in $(printf '%s\n' 1 "$n" | sort -nu); do
    for steps in 10 20; do
        measure "save-$shard-$steps" --shard "$shard" --save-every 10 --keep-last 1 --steps "$steps" --out "$work/save-$shard"
    done
    find "$work/save-$shard" -name 'rank-*' -printf '  %f %s bytes\n' | sort -u || true
    rm -rf "$work/save-$shard" # 15 GB of 1b
done
echo "== attention inside documents, compiled" # 95 s
measure documents --attention document --compile --steps 12 --out "$work/documents"
if ((n > 1)); then
    echo "== tensor parallel with full recomputation: eager, compiled" # 40 + 110 s
    for compile in no-compile compile; do
        measure "tensor-$compile" --tensor 2 --checkpointing full "--$compile" --steps 12 --out "$work/$compile"
    done
fi
