# LUMI (CSC): LUMI-G for training, LUMI-C for text. Fill in the empty values.
# shellcheck shell=bash disable=SC2034
#
# Sources: github.com/Lumi-supercomputer/lumi-userguide, docs/runjobs/scheduled-jobs/partitions.md (partitions, limits
# of 2 days; `standard` and `standard-g` give whole nodes) and docs/hardware/lumig.md (a node is 8 GPUs to Slurm, has no
# local disk and 4 Slingshot interfaces, hsn0 to hsn3).

SITE_ACCOUNT=              # project_465000000; `groups` lists yours
SITE_VENV=                 # unpacked on each node, see "Put the environment into one file" in slurm/README.md: many
                           # small files are slow on LUMI's Lustre

SITE_CPU_PARTITION=standard
SITE_CPU_QOS=none
SITE_CPU_CORES=128
SITE_CPU_MEMORY=224G       # of 256: the system reserves the rest
SITE_CPU_TIME=48:00:00
SITE_CPU_OPTIONS=--exclusive

SITE_GPU_PARTITION=standard-g
SITE_GPU_QOS=none
SITE_GPUS=8                # 4 MI250X, each of which counts as two GPUs
SITE_GPU_CORES=56          # of 64: the system reserves one core in each group of 8
SITE_GPU_MEMORY=480G
SITE_GPU_TIME=48:00:00
SITE_GPU_OPTIONS=--exclusive

SITE_INTERFACE=hsn0
SITE_NODE_LOCAL=/tmp       # in memory, as there is no local disk
SITE_PREFLIGHT=full
SITE_PREFLIGHT_LIMITS="--min-memory 100GiB"
SITE_PUE=1.04              # www.lumi-supercomputer.eu/sustainable-future, as Poro's paper quotes it (arXiv 2404.01856)
SITE_CARBON=0              # hydropower by contract; OLMo's paper (arXiv 2402.00838) names 0.024 for what hydropower causes

site_setup() {
    # Name the plugin for Slingshot, so that RCCL fails if it cannot find it (NVIDIA's documentation of NCCL_NET).
    # Without the name it would fall back to TCP, at a fraction of the speed. All versions of aws-ofi-nccl accept this
    # name, up to 1.11 only this one (its pull request 530). Not tried on LUMI: if RCCL does not find this network, read
    # its log with NCCL_DEBUG=INFO.
    export NCCL_NET="AWS Libfabric"
    # Without it a second process group hung in 13 of 17 tries (laifs-container-recipes 44).
    export FI_MR_CACHE_MONITOR=userfaultfd
    # As in public job scripts for LUMI: one interface next to each pair of GPUs.
    export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3 GLOO_SOCKET_IFNAME=$SITE_INTERFACE
}
