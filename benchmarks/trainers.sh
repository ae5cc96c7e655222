#!/usr/bin/env bash
# The same 1,000 steps through `train` and the trainers of others, each in an environment of its own, and the speed of
# each loader beside the trainer's own:
#
#     bash benchmarks/trainers.sh [FOLDER]
#
# FOLDER (default: a temporary one) keeps environments, shards and runs; what stands there is not made again. Run it with
# pretok's own environment active. 20 minutes on two cores, without a GPU, 5 GB of disk. See benchmarks/trainers.py.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "${1:-$(mktemp -d)}")
mkdir -p "$folder/environments"
export OMP_NUM_THREADS=1 PIP_DISABLE_PIP_VERSION_CHECK=1
first=501 steps=1000

environment() { # NAME PACKAGE ...: pretok with what pretok.stream needs, beside the trainer
    local python=$folder/environments/$1/bin/python
    [ -e "$folder/environments/$1/done" ] && return
    python3 -m venv "$folder/environments/$1"
    "$python" -m pip install --quiet torch==2.13.0 numpy msgspec xxhash "${@:2}"
    "$python" -m pip install --quiet --no-deps -e .
    touch "$folder/environments/$1/done"
}
both() { # COMMAND ... with the number of steps behind it: 4 ranks stop at an odd step, 2 go on to the end
    "$1" -m torch.distributed.run --standalone --nproc-per-node 4 "${@:2}" $first
    "$1" -m torch.distributed.run --standalone --nproc-per-node 2 "${@:2}" $steps
}

if [ ! -e "$folder/mix.json" ]; then
    pretok run pipelines/demo.toml --out "$folder/demo"
    python -c "from benchmarks.train_shards import *; write_random_shards(Path('$folder/random'), 40_000_000)"
    pretok mix "$folder/demo/shards" --out "$folder/mix.json" --weights it=0.9,en=0.1 --tokens 512000 --seq-len 64 \
        --max-epochs 25
fi
printf '%s\n' 'vocab_size = 4000' 'dim = 32' 'layers = 1' 'heads = 2' 'kv_heads = 2' 'hidden = 64' 'tied = true' \
    > "$folder/model.toml"
[ -e "$folder/train/done.json" ] || both python -m train --shards "$folder/demo/shards" --mix "$folder/mix.json" \
    --model "$folder/model.toml" --out "$folder/train" --global-batch 8 --micro-batch 1 --save-every 501 --steps

environment pytorch
environment transformers transformers accelerate
environment torchtitan torchtitan triton # its trainer imports triton, which a torch for CPUs leaves out
environment olmo ai2-olmo-core
environment megatron megatron-core
for name in pytorch transformers torchtitan olmo megatron; do
    python=$folder/environments/$name/bin/python
    rm -rf "${folder:?}/$name"
    mkdir -p "$folder/$name"
    both "$python" benchmarks/trainers.py run $name "$folder" > "$folder/$name.log" 2>&1 ||
        grep -E '^[A-Za-z.]*Error' "$folder/$name.log" | tail -1 | tee "$folder/$name/failed.txt"
    "$python" benchmarks/trainers.py speed $name "$folder"
done
python -m benchmarks.trainers collect "$folder"
