# Environment of every job; each sbatch script sources it as `source env.sh PROFILE`.
# Input: the profile's SITE_* values and its site_setup function. Output: the exports below, $logs and say().
# shellcheck shell=bash disable=SC1090,SC2034

source "$1"
: "${SITE_VENV:?is empty in $1: the Python virtual environment with pretok, on the shared file system}"
slurm=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
logs=${PRETOK_CHAIN:-$SLURM_SUBMIT_DIR}
say() { echo "$(date +%T) $SLURM_JOB_NAME $SLURM_JOB_ID: $*"; }

set +u # module files of most sites read unset variables
site_setup
set -u
export PATH=$SITE_VENV/bin:$PATH # after the modules, so that their Python does not win
export PYTHONUNBUFFERED=1        # a log shows a line when it is written, not when the job ends

# Compute nodes have no route out. Without these, libraries wait for a timeout and say confusing things.
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TRANSFORMERS_OFFLINE=1
export WANDB_MODE=offline         # `wandb sync` on a login node sends the runs later
export RAY_USAGE_STATS_ENABLED=0
export TORCH_CPP_LOG_LEVEL=ERROR  # reverse DNS lookups that fail are not worth a warning each

# One task, one core: Ray or torchrun starts a process per core or GPU; a library that starts a thread per core of the
# node in each of them runs 100 x 100 threads.
export OMP_NUM_THREADS=1 RAYON_NUM_THREADS=1 NUMBA_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

# Compiled code is cached on the node: hundreds of processes that lock files in one shared folder stall each other. Numba
# may be given another place, for many short jobs: it compiles for some seconds on each node.
node_local=${SITE_NODE_LOCAL:-/tmp}/pretok-$SLURM_JOB_ID
export NUMBA_CACHE_DIR=${NUMBA_CACHE_DIR:-$node_local/numba} TRITON_CACHE_DIR=$node_local/triton
export TORCHINDUCTOR_CACHE_DIR=$node_local/inductor

# When this job ends (SLURM_JOB_END_TIME where Slurm is new enough), so that programs stop in time and save.
PRETOK_JOB_END_TIME=${SLURM_JOB_END_TIME:-$(date -d "$(squeue -h -j "$SLURM_JOB_ID" -o %e)" +%s)}
export PRETOK_JOB_END_TIME

# srun stopped inheriting the job's cores per task in Slurm 22.05; this hands them on in every version.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}

ulimit -n "$(ulimit -Hn)" # Ray keeps a connection for each worker process
ulimit -c 0               # a core dump of a training process is hundreds of gigabytes

# A port of our own: jobs of several users may share a node.
port=$((20000 + SLURM_JOB_ID % 10000))

node_address() { # NODE -> its IPv4 address on SITE_INTERFACE, or the one its name stands for
    if [ -n "${SITE_INTERFACE:-}" ]; then
        srun --overlap -N1 -n1 -w "$1" ip -4 -o addr show dev "$SITE_INTERFACE" | awk '{split($4, a, "/"); print a[1]}'
    else
        getent ahostsv4 "$1" | awk 'NR == 1 {print $1}'
    fi
}
