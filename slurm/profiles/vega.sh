# Vega (IZUM): GPU nodes for training, CPU nodes for text. Fill in the empty values.
# shellcheck shell=bash disable=SC2034
#
# Sources: doc.vega.izum.si/shares (768 nodes of 2 x 64 cores and 256 GB; 60 with 4 GPUs and 2 x 64 cores);
# github.com/EESSI/test-suite, config/izum_vega.py (partitions cpu and gpu without a QOS; gpu needs --gres or --gpus, which
# `pretok submit` passes; 244140 MiB and 476.8 GiB a node).
# No run of this project has used this machine yet.

SITE_ACCOUNT=              # not known: sacctmgr -n show assoc user=$USER format=account,qos
SITE_VENV=                 # on the shared file system; for hundreds of workers unpack it on each node, see slurm/README.md

SITE_CPU_PARTITION=cpu
SITE_CPU_QOS=none
SITE_CPU_CORES=128
SITE_CPU_MEMORY=0          # all memory of a node of 256 GB
SITE_CPU_TIME=             # not found in public sources: sinfo -o '%P %l'
SITE_CPU_OPTIONS=--exclusive

SITE_GPU_PARTITION=gpu
SITE_GPU_QOS=none
SITE_GPUS=4
SITE_GPU_CORES=128
SITE_GPU_MEMORY=0          # all memory of a node of 512 GB
SITE_GPU_TIME=             # not found in public sources: sinfo -o '%P %l'
SITE_GPU_OPTIONS=--exclusive

SITE_INTERFACE=            # not known: check with `ip -br addr` on a node; empty: the address of the node name
SITE_NODE_LOCAL=/tmp       # on the disk of the node, not confirmed
SITE_PREFLIGHT=full
SITE_PREFLIGHT_LIMITS="--min-memory 190GiB"
SITE_PUE=                  # not found in public sources
SITE_CARBON=               # not found in public sources
