# Karolina (IT4Innovations): accelerated nodes for training, CPU nodes for text. Fill in the empty values.
# shellcheck shell=bash disable=SC2034
#
# Sources: github.com/ECP-WarpX/WarpX, Tools/machines/karolina-it4i (partition qgpu, 8 GPUs and 128 cores a node); a public
# table of EuroHPC machines (720 nodes of 2 x 64 cores and 256 GB; 72 with 8 A100 of 40 GB, 2 x 64 cores, 1 TB).
# No run of this project has used this machine yet.

SITE_ACCOUNT=              # not known: sacctmgr -n show assoc user=$USER format=account,qos
SITE_VENV=                 # on the shared file system; for hundreds of workers unpack it on each node, see slurm/README.md

SITE_CPU_PARTITION=qcpu    # not confirmed
SITE_CPU_QOS=none
SITE_CPU_CORES=128
SITE_CPU_MEMORY=0          # all memory of a node of 256 GB
SITE_CPU_TIME=             # not found in public sources: sinfo -o '%P %l'
SITE_CPU_OPTIONS=--exclusive

SITE_GPU_PARTITION=qgpu
SITE_GPU_QOS=none
SITE_GPUS=8
SITE_GPU_CORES=128
SITE_GPU_MEMORY=0          # all memory of a node of 1 TB
SITE_GPU_TIME=             # not found in public sources: sinfo -o '%P %l'
SITE_GPU_OPTIONS=--exclusive

SITE_INTERFACE=            # not known: check with `ip -br addr` on a node; empty: the address of the node name
SITE_NODE_LOCAL=/tmp       # in memory: the nodes have no disk
SITE_PREFLIGHT=full
SITE_PREFLIGHT_LIMITS="--min-memory 190GiB"

site_setup() {
    : # torch wheels include the CUDA libraries; load other modules here if needed
    export PYTORCH_ALLOC_CONF=expandable_segments:True # less fragmentation of torch's memory
}
