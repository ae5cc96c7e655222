# MareNostrum 5 (BSC): ACC for training, GPP for text. Fill in the empty values.
# shellcheck shell=bash disable=SC2034
#
# Sources: www.bsc.es/supportkc/docs/MareNostrum5/slurm and /overview as public repositories quote them (ACC: 80 cores, 4
# H100 of 64 GB; GPP: 112 cores; EuroHPC queues acc_ehpc and gp_ehpc, 72 h; account and QOS are required; --mem is not
# accepted). `bsc_project list` and `bsc_queues` show yours. No internet on login and compute nodes.

SITE_ACCOUNT=
SITE_VENV=                 # /gpfs/projects/...; /gpfs/scratch is cleaned

SITE_CPU_PARTITION=gpp
SITE_CPU_QOS=              # gp_ehpc for EuroHPC projects
SITE_CPU_CORES=112
SITE_CPU_MEMORY=none       # determined by the cores
SITE_CPU_TIME=72:00:00
SITE_CPU_OPTIONS=--exclusive

SITE_GPU_PARTITION=acc
SITE_GPU_QOS=              # acc_ehpc for EuroHPC projects
SITE_GPUS=4
SITE_GPU_CORES=80
SITE_GPU_MEMORY=none
SITE_GPU_TIME=72:00:00
SITE_GPU_OPTIONS=--exclusive

SITE_INTERFACE=            # fill in: not found in public sources (ip -br addr, on a compute node)
SITE_NODE_LOCAL=/tmp
SITE_PREFLIGHT=full
SITE_PREFLIGHT_LIMITS="--min-memory 100GiB"
SITE_PUE=                  # not found in public sources
SITE_CARBON=               # not found in public sources
