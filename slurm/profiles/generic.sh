# Template for any Slurm cluster. Copy this file and fill in the empty values, or write `none` if not applicable.
# If a value that a stage needs is empty, `pretok submit` refuses to run and names it.
# shellcheck shell=bash disable=SC2034
#
# What to ask Slurm:  sinfo -o '%P %D %c %m %G %l'   (partition, nodes, cores, MB, GPUs, time limit)
#                     sacctmgr -n show assoc user=$USER format=account,qos

SITE_ACCOUNT=              # Slurm account (sbatch --account)
SITE_VENV=                 # virtual environment with pretok, on a file system shared by all nodes

# CPU nodes: vocabulary, tokens, mix
SITE_CPU_PARTITION=
SITE_CPU_QOS=none
SITE_CPU_CORES=            # per node
SITE_CPU_MEMORY=           # per node, in the format of sbatch --mem: 480G
SITE_CPU_TIME=24:00:00     # time limit of the partition
SITE_CPU_OPTIONS=          # further sbatch options, such as --exclusive

# GPU nodes: training
SITE_GPU_PARTITION=
SITE_GPU_QOS=none
SITE_GPUS=                 # per node
SITE_GPU_CORES=
SITE_GPU_MEMORY=
SITE_GPU_TIME=24:00:00
SITE_GPU_OPTIONS=

SITE_INTERFACE=            # fast network for Ray and rendezvous (ip -br addr, on a compute node); empty: the address of the node name
SITE_NODE_LOCAL=/tmp       # fast local folder; jobs clean it up
SITE_PREFLIGHT=full        # full, node (without matrix product and all-reduce) or none
SITE_PREFLIGHT_LIMITS=     # for example --min-free 2TiB --min-memory 200GiB
SITE_PUE=                  # of the site, and kg CO2e per kWh of its electricity, for the energy report: train --pue, --carbon
SITE_CARBON=

# site_setup() { # in every job, before the virtual environment is added to PATH; without it, what slurm/env.sh does for NVIDIA
#     module load cuda
# }
