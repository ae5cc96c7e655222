# JUPITER Booster (JSC): for text and training, as all its nodes have GPUs. Fill in the empty values.
# shellcheck shell=bash disable=SC2034
#
# Sources: apps.fz-juelich.de/jsc/hps/jupiter/configuration.html (4 GH200 a node: 72 cores, 120 GB and a GPU of 96 GB each;
# four InfiniBand NDR200) and /batchsystem.html (Slurm); job scripts in public repositories that run under /e/project1:
# partition booster, 288 cores, --gpus-per-node=4, no --mem. Not tried on JUPITER.

SITE_ACCOUNT=
SITE_VENV=                 # /e/project1/...; create it on JUPITER, whose processors are aarch64

SITE_CPU_PARTITION=booster
SITE_CPU_QOS=none
SITE_CPU_CORES=288
SITE_CPU_MEMORY=none       # no public script sets it
SITE_CPU_TIME=             # not found in public sources, where 12:00:00 is used: sinfo -p booster -o %l
SITE_CPU_OPTIONS="--exclusive --gpus-per-node=4"

SITE_GPU_PARTITION=booster
SITE_GPU_QOS=none
SITE_GPUS=4
SITE_GPU_CORES=288
SITE_GPU_MEMORY=none
SITE_GPU_TIME=             # as above
SITE_GPU_OPTIONS=--exclusive

SITE_INTERFACE=            # not found in public sources (ip -br addr, on a compute node); empty: the address of the node name
SITE_NODE_LOCAL=/tmp
SITE_PREFLIGHT=full
SITE_PREFLIGHT_LIMITS="--min-memory 300GiB"
SITE_PUE=                  # not found in public sources
SITE_CARBON=               # not found in public sources
