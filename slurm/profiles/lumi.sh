# LUMI (CSC): LUMI-G for training, LUMI-C for text. Fill in what is empty.
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
SITE_CPU_MEMORY=224G       # of 256: the rest is the system's
SITE_CPU_TIME=48:00:00
SITE_CPU_OPTIONS=--exclusive

SITE_GPU_PARTITION=standard-g
SITE_GPU_QOS=none
SITE_GPUS=8                # 4 MI250X, each two GPUs to the system
SITE_GPU_CORES=56          # of 64: one core of each group of 8 is the system's
SITE_GPU_MEMORY=480G
SITE_GPU_TIME=48:00:00
SITE_GPU_OPTIONS=--exclusive

SITE_INTERFACE=hsn0
SITE_NODE_LOCAL=/tmp       # in memory: there is no local disk
SITE_PREFLIGHT=full
SITE_PREFLIGHT_LIMITS="--min-memory 100GiB"

site_setup() {
    # With the name of the plugin for Slingshot RCCL ends where it does not find it (NVIDIA's documentation of NCCL_NET);
    # without, it would fall back to TCP and train at a fraction of the speed. aws-ofi-nccl takes this name in all its
    # versions, up to 1.11 this alone (its pull request 530); not tried on LUMI: where RCCL knows no such network, look at
    # its log with NCCL_DEBUG=INFO.
    export NCCL_NET="AWS Libfabric"
    # as public job scripts for LUMI set it: one interface beside each pair of GPUs
    export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3 GLOO_SOCKET_IFNAME=$SITE_INTERFACE
}
