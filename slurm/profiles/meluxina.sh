# MeluXina (LuxProvide): accelerator nodes for training, cluster nodes for text. Fill in the empty values.
# shellcheck shell=bash disable=SC2034
#
# Sources: docs.lxp.lu/first-steps/handling_jobs as public repositories quote it (partitions cpu and gpu; a QOS is mandatory:
# default 48 h, short 6 h, long 144 h, test 30 min; whole nodes only) and docs.lxp.lu/system/detailed_arch likewise (573 nodes
# of 2 x 64 cores and 512 GB; 200 with 4 A100 of 40 GB, 2 x 32 cores, 512 GB and a disk of 1.92 TB).
# No run of this project has used this machine yet.

SITE_ACCOUNT=              # not known: sacctmgr -n show assoc user=$USER format=account,qos
SITE_VENV=                 # on the shared file system; for hundreds of workers unpack it on each node, see slurm/README.md

SITE_CPU_PARTITION=cpu
SITE_CPU_QOS=default       # `short` or `test` for tests
SITE_CPU_CORES=128
SITE_CPU_MEMORY=0          # all memory of a node of 512 GB
SITE_CPU_TIME=48:00:00
SITE_CPU_OPTIONS=--exclusive

SITE_GPU_PARTITION=gpu
SITE_GPU_QOS=default
SITE_GPUS=4
SITE_GPU_CORES=64
SITE_GPU_MEMORY=0          # all memory of a node of 512 GB
SITE_GPU_TIME=48:00:00
SITE_GPU_OPTIONS=--exclusive

SITE_INTERFACE=            # not known: check with `ip -br addr` on a node; empty: the address of the node name
SITE_NODE_LOCAL=/tmp       # GPU nodes have a disk, CPU nodes have none
SITE_PREFLIGHT=full
SITE_PREFLIGHT_LIMITS="--min-memory 380GiB"
SITE_PUE=                  # not found in public sources
SITE_CARBON=               # not found in public sources
