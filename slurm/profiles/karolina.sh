# Karolina (IT4Innovations): accelerated nodes for training, CPU nodes for text. Fill in the empty values.
# shellcheck shell=bash disable=SC2034
#
# Sources: docs.it4i.cz/general/resources-allocation-policy (qcpu gives whole nodes; qgpu: 8 A100 of 40 GB, 16 cores for each;
# your PI must ask support for qgpu); docs.it4i.cz/en/docs/general/run-jobs/resource-allocation/karolina-partitions as public
# repositories quote it (both: 24 h by default, 48 h at most); github.com/EESSI/test-suite, config/it4i_karolina.py (qcpu:
# 235520 MiB a node; no QOS); github.com/ECP-WarpX/WarpX, Tools/machines/karolina-it4i (128 cores a GPU node).
# No run of this project has used this machine yet.

SITE_ACCOUNT=              # not known: sacctmgr -n show assoc user=$USER format=account,qos
SITE_VENV=                 # on the shared file system; for hundreds of workers unpack it on each node, see slurm/README.md

SITE_CPU_PARTITION=qcpu
SITE_CPU_QOS=none
SITE_CPU_CORES=128
SITE_CPU_MEMORY=0          # all memory of a node of 256 GB
SITE_CPU_TIME=48:00:00
SITE_CPU_OPTIONS=--exclusive

SITE_GPU_PARTITION=qgpu
SITE_GPU_QOS=none
SITE_GPUS=8
SITE_GPU_CORES=128
SITE_GPU_MEMORY=0          # all memory of a node of 1 TB
SITE_GPU_TIME=48:00:00
SITE_GPU_OPTIONS=--exclusive

SITE_INTERFACE=            # not known: check with `ip -br addr` on a node; empty: the address of the node name
SITE_NODE_LOCAL=/tmp       # in memory: the nodes have no disk
SITE_PREFLIGHT=full
SITE_PREFLIGHT_LIMITS="--min-memory 190GiB"
SITE_PUE=                  # not found in public sources
SITE_CARBON=               # not found in public sources
