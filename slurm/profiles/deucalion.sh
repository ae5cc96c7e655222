# Deucalion (MACC): A100 nodes for training, x86 nodes for text. Fill in the empty values.
# shellcheck shell=bash disable=SC2034
#
# Sources: docs.deucalion.acnca.pt (docs.macc.fccn.pt), as the notes of the project monoprop quote it and measured it on the
# machine on 2026-08-11: partitions, cores, memory, limits (normal-x86 at most 64 nodes, large-x86 128 for 3 days, the A100
# partitions 4 nodes), one QOS, a local disk of 220 GB.
# The Arm partition cannot run the x86 environment.
# No run of this project has used this machine yet.

SITE_ACCOUNT=              # PROJECTg for A100 nodes; x86 nodes need PROJECTx: submit the stages apart, with --account
SITE_VENV=                 # on the shared file system; for hundreds of workers unpack it on each node, see slurm/README.md

SITE_CPU_PARTITION=normal-x86
SITE_CPU_QOS=none
SITE_CPU_CORES=128
SITE_CPU_MEMORY=0          # all memory of a node of 256 GB
SITE_CPU_TIME=48:00:00
SITE_CPU_OPTIONS=--exclusive

SITE_GPU_PARTITION=normal-a100-80    # normal-a100-40 has those of 40 GB
SITE_GPU_QOS=none
SITE_GPUS=4
SITE_GPU_CORES=128
SITE_GPU_MEMORY=0          # all memory of a node of 512 GB
SITE_GPU_TIME=48:00:00
SITE_GPU_OPTIONS=--exclusive

SITE_INTERFACE=            # not known: check with `ip -br addr` on a node; empty: the address of the node name
SITE_NODE_LOCAL=/tmp       # about 200 GB free on x86 nodes
SITE_PREFLIGHT=full
SITE_PREFLIGHT_LIMITS="--min-memory 190GiB"
SITE_PUE=                  # not found in public sources
SITE_CARBON=               # not found in public sources
