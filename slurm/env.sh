# The environment of every job. Each sbatch script runs `source env.sh PROFILE`.
# Input: the SITE_* values and, if it has one, the site_setup function of the profile. Output: the exports below, $logs and say().
# shellcheck shell=bash disable=SC1090,SC2034

site_setup() { # of NVIDIA machines, unless the profile has its own; torch wheels include the CUDA libraries
    export PYTORCH_ALLOC_CONF=expandable_segments:True # less fragmentation of torch's memory
    if [ -n "${SITE_INTERFACE:-}" ]; then export NCCL_SOCKET_IFNAME=$SITE_INTERFACE GLOO_SOCKET_IFNAME=$SITE_INTERFACE; fi
}
source "$1"
: "${SITE_VENV:?is empty in $1: the Python virtual environment with pretok, on the shared file system}"
slurm=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
logs=${PRETOK_CHAIN:-$SLURM_SUBMIT_DIR}
say() { echo "$(date +%T) $SLURM_JOB_NAME $SLURM_JOB_ID: $*"; }

set +u # the module files of most sites read unset variables
site_setup
set -u
export PATH=$SITE_VENV/bin:$PATH # after the modules, so that this Python comes before theirs
export PYTHONUNBUFFERED=1        # write each log line at once, not when the job ends

# Compute nodes have no internet. Without these, libraries wait for a timeout and print confusing errors.
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TRANSFORMERS_OFFLINE=1
export WANDB_MODE=offline         # upload the runs later with `wandb sync` on a login node
export RAY_USAGE_STATS_ENABLED=0
export TORCH_CPP_LOG_LEVEL=ERROR  # otherwise each failed reverse DNS lookup prints a warning

# One core per process: Ray or torchrun starts a process per core or GPU. If a library then started a thread per core in
# each of them, a node with 100 cores would run 100 x 100 threads.
export OMP_NUM_THREADS=1 RAYON_NUM_THREADS=1 NUMBA_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

# Compiled code is cached on the node: processes that lock files in one shared folder would stall each other. For many
# short jobs Numba's cache can be set elsewhere, as it compiles for some seconds on each node.
node_local=${SITE_NODE_LOCAL:-/tmp}/pretok-$SLURM_JOB_ID
export NUMBA_CACHE_DIR=${NUMBA_CACHE_DIR:-$node_local/numba} TRITON_CACHE_DIR=$node_local/triton
export TORCHINDUCTOR_CACHE_DIR=$node_local/inductor

# When this job ends (Slurm sets SLURM_JOB_END_TIME if it is new enough), so that programs can stop and save in time.
# Empty if Slurm does not answer or sets no end. (`date -d ""` would be this midnight.)
PRETOK_JOB_END_TIME=${SLURM_JOB_END_TIME:-$(squeue -h -j "$SLURM_JOB_ID" -o %e | date -f - +%s || true)}
export PRETOK_JOB_END_TIME

# Since Slurm 22.05 srun no longer inherits the cores per task of the job; this passes them on in every version.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}

ulimit -n "$(ulimit -Hn)" # Ray keeps a connection open for each worker process
ulimit -c 0               # a core dump of a training process would be hundreds of gigabytes

# A port of its own for each job: several jobs may share a node.
port=$((20000 + SLURM_JOB_ID % 10000))

node_address() { # NODE: print its IPv4 address on SITE_INTERFACE, or else the one its name resolves to
    if [ -n "${SITE_INTERFACE:-}" ]; then
        srun --overlap -N1 -n1 -w "$1" ip -4 -o addr show dev "$SITE_INTERFACE" | awk 'NR == 1 {split($4, a, "/"); print a[1]}'
    else
        getent ahostsv4 "$1" | awk 'NR == 1 {print $1}'
    fi
}
