#!/usr/bin/env bash
# The first half hour on one or more GPUs, unattended: speed eager and compiled, each kernel of attention, micro-batches,
# recomputation, document masks, a profile, parity with one rank, a save's stall, a resume, a killed rank.
#
#     bash benchmarks/train_gpu.sh                    # GPUs of this machine, 1b at 4,096 tokens, at most 25 minutes
#     OUT=folder LIMIT=600 bash benchmarks/train_gpu.sh
#
# Without a GPU it runs the debug model on two processes, which shows that the script works and says nothing of speed.
# Output: OUT/table.txt, which is printed too, and the raw lines of each case: OUT/CASE/metrics.jsonl, OUT/CASE.log.
# No GPU has run it yet.
set -u
cd "$(dirname "$0")/.."
export OUT=${OUT:-/tmp/train-gpu} OMP_NUM_THREADS=${OMP_NUM_THREADS:-4} PYTORCH_ALLOC_CONF=expandable_segments:True
PYTHON=${PYTHON:-python} LIMIT=${LIMIT:-1500} GPUS=$(nvidia-smi -L 2>/dev/null | wc -l)
mkdir -p "$OUT" && rm -rf "${OUT:?}"/*
if ((GPUS)); then
    RANKS=$GPUS MODEL=1b SMALL=160m LENGTH=4096 STEPS=25 TOKENS=60_000_000 SIZES="4 8 16"
    nvidia-smi --query-gpu=name,power.limit,memory.total --format=csv
    nvidia-smi topo -m
else
    RANKS=2 MODEL=debug SMALL=debug LENGTH=128 STEPS=6 TOKENS=400_000 SIZES="1 2"
fi
"$PYTHON" -c "from benchmarks.train_shards import *; write_random_shards(Path('$OUT/shards'), $TOKENS)" || exit 1

# A kernel is asked first where it is named first.
cat >"$OUT/kernel.py" <<'EOF'
import os, torch
from torch.nn.attention import SDPBackend
from train.parallel import devices
wanted = SDPBackend.__members__[os.environ["KERNEL"]]
find = devices.find_device
def found():
    device = find()
    torch._C._set_sdp_priority_order([wanted.value, *(k.value for k in devices.HOPPER_KERNELS if k != wanted)])
    return device
import train.loop as loop
loop.find_device = found
from train.__main__ import main
main()
EOF
# Documents by flex_attention where varlen would be taken.
cat >"$OUT/flex.py" <<'EOF'
from train.model import attention
attention._VARLEN = None
from train.__main__ import main
main()
EOF
# CASE CODE SECONDS RANKS ARGUMENTS -> one line of the table.
cat >"$OUT/row.py" <<'EOF'
import json, os, statistics, subprocess, sys
name, code, seconds, ranks, *arguments = sys.argv[1:]
try:
    with open(f"{os.environ['OUT']}/{name}/metrics.jsonl") as file:
        steps = [json.loads(line) for line in file]
except OSError:
    steps = []
steady = steps[8:] or steps[1:]
def median(key):
    values = [step[key] for step in steady if step[key] is not None]
    return statistics.median(values) if values else None
def shown(value, form, scale=1):
    return "n/a" if value is None else format(value / scale, form)
plan = subprocess.run([sys.executable, "-m", "train", "plan", "--json", "--devices-per-node", ranks, *arguments],
                      capture_output=True, text=True)
counted = sum(json.loads(plan.stdout)["count"].values()) if plan.returncode == 0 else None
print(f"{name:<14} {code:>4} {seconds:>5} {shown(median('tokens_per_second_per_device'), '10,.0f'):>10} "
      f"{shown(median('mfu'), '.3f'):>6} {shown(median('memory_peak'), '.1f', 2**30):>7} {shown(counted, '.1f', 2**30):>7} "
      f"{shown(median('seconds'), '.3f'):>8} {shown(max((s['seconds'] for s in steady), default=None), '.3f'):>8} "
      f"{len(steps):>5} {shown(steps[-1]['loss'] if steps else None, '.4f'):>8}")
EOF
printf '%-14s %4s %5s %10s %6s %7s %7s %8s %8s %5s %8s\n' case code secs tok/s/dev MFU GiB plan step slowest steps loss |
    tee "$OUT/table.txt"

start() { # CASE RANKS PROGRAM ARGUMENTS: in the background, as process $!
    local name=$1 ranks=$2 program=$3
    shift 3
    # shellcheck disable=SC2086 # the program is words
    PYTHONPATH=$PWD timeout 200 "$PYTHON" -m torch.distributed.run --standalone --nproc-per-node "$ranks" $program \
        --shards "$OUT/shards" --out "$OUT/$name" "$@" >>"$OUT/$name.log" 2>&1 &
}
row() { # CASE CODE SECONDS RANKS ARGUMENTS
    "$PYTHON" "$OUT/row.py" "$@" | tee -a "$OUT/table.txt"
}
run() { # CASE RANKS PROGRAM ARGUMENTS
    ((SECONDS > LIMIT)) && echo "$1: the time is up" && return
    local began=$SECONDS
    start "$@"
    wait $!
    row "$1" $? $((SECONDS - began)) "$2" "${@:4}"
}
sizes() { # MICRO-BATCH: the flags of one pass a step
    echo --model $MODEL --seq-len $LENGTH --warmup 5 --micro-batch "$1" --global-batch $(($1 * RANKS)) --log-every 5
}
first=${SIZES%% *}
short="--save-every never --steps $STEPS"
run compiled "$RANKS" "-m train" $(sizes "$first") $short
run eager "$RANKS" "-m train" $(sizes "$first") $short --no-compile
for kernel in CUDNN FLASH EFFICIENT; do
    KERNEL=${kernel}_ATTENTION run "$kernel" "$RANKS" "$OUT/kernel.py" $(sizes "$first") $short
done
for size in $SIZES; do
    run "ops-$size" "$RANKS" "-m train" $(sizes "$size") $short --checkpointing ops
    run "full-$size" "$RANKS" "-m train" $(sizes "$size") $short --checkpointing full
done
run document "$RANKS" "-m train" $(sizes "$first") $short --attention document
run document-flex "$RANKS" "$OUT/flex.py" $(sizes "$first") $short --attention document
run profile "$RANKS" "-m train" $(sizes "$first") $short --profile 3
# The same training on one rank and on all: the last losses agree to about 0.01.
for ranks in 1 "$RANKS"; do
    run "parity-$ranks" "$ranks" "-m train" --model $SMALL --seq-len $LENGTH --warmup 5 --global-batch $((2 * RANKS)) \
        --micro-batch 2 $short
done
# A save in mid-run: 'slowest' beside 'step' is the stall. Then the same command goes on.
run save "$RANKS" "-m train" $(sizes "$first") --steps $STEPS --save-every $((STEPS / 2))
run save "$RANKS" "-m train" $(sizes "$first") --steps $((STEPS + 4)) --save-every $((STEPS / 2))
# A rank is killed in mid-run: 'secs' are those until all had ended.
if ((RANKS > 1 && SECONDS < LIMIT)); then
    start killed "$RANKS" "-m train" $(sizes "$first") --save-every never --steps $((10 * STEPS))
    launcher=$!
    until (($(cat "$OUT/killed/metrics.jsonl" 2>/dev/null | wc -l) >= STEPS / 2)) || ! kill -0 $launcher 2>/dev/null; do
        sleep 0.2
    done
    began=$SECONDS
    # The launcher is a child of `timeout`, and the ranks are its children.
    kill -KILL "$(pgrep -P "$(pgrep -P $launcher)" | tail -n 1)"
    wait $launcher
    row killed $? $((SECONDS - began)) "$RANKS" $(sizes "$first")
fi
grep -h "^attention\|resumed\|saved\|goodput" "$OUT"/*.log | sort | uniq -c >>"$OUT/table.txt"
echo "raw lines: $OUT"
