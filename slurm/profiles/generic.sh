# Any Slurm cluster. Copy this file, fill in what is empty, write `none` where your site has no such thing.
# `pretok submit` refuses to run while a value that its stages need is empty, and names it.
# shellcheck shell=bash disable=SC2034
#
# What to ask Slurm:  sinfo -o '%P %D %c %m %G %l'   (partition, nodes, cores, MB, GPUs, time limit)
#                     sacctmgr -n show assoc user=$USER format=account,qos

SITE_ACCOUNT=              # project that pays (sbatch --account)
SITE_VENV=                 # virtual environment with pretok, on the file system that all nodes see

# CPU nodes: vocabulary, tokens, mix
SITE_CPU_PARTITION=
SITE_CPU_QOS=none
SITE_CPU_CORES=            # of a node
SITE_CPU_MEMORY=           # of a node, as sbatch --mem takes it: 480G
SITE_CPU_TIME=24:00:00     # longest time the partition allows
SITE_CPU_OPTIONS=          # further sbatch options, such as --exclusive

# GPU nodes: training
SITE_GPU_PARTITION=
SITE_GPU_QOS=none
SITE_GPUS=                 # of a node
SITE_GPU_CORES=
SITE_GPU_MEMORY=
SITE_GPU_TIME=24:00:00
SITE_GPU_OPTIONS=

SITE_INTERFACE=            # fast network for Ray and rendezvous (ip -br addr, on a compute node); empty: what node names mean
SITE_NODE_LOCAL=/tmp       # fast, per node; a job leaves nothing there
SITE_PREFLIGHT=full        # full, node (without matrix product and all-reduce) or none
SITE_PREFLIGHT_LIMITS=     # such as --min-free 2TiB --min-memory 200GiB

site_setup() { # in every job, before the virtual environment comes first on PATH
    : # module load cuda
    # export PYTORCH_ALLOC_CONF=expandable_segments:True # on NVIDIA: torch loses less memory between blocks
    # export NCCL_SOCKET_IFNAME=$SITE_INTERFACE GLOO_SOCKET_IFNAME=$SITE_INTERFACE
}
