# Leonardo (CINECA): Booster for training, DCGP for text. Fill in the empty values.
# shellcheck shell=bash disable=SC2034
#
# Sources: docs.hpc.cineca.it/hpc/leonardo.html (nodes: 32 cores and 4 A100 of 64 GB; DCGP: 112 cores; 512 GB each;
# 24 h limit); job scripts in public repositories: --mem=494000, partitions, QOS, NCCL_IB_HCA. No internet on
# the compute nodes.

SITE_ACCOUNT=              # `saldo -b` for Booster; the budget for DCGP may be another account: --account overrides this
SITE_VENV=                 # in $WORK; for hundreds of workers unpack it on each node, see slurm/README.md

SITE_CPU_PARTITION=dcgp_usr_prod
SITE_CPU_QOS=none          # dcgp_qos_bprod for many nodes, dcgp_qos_dbg for tests
SITE_CPU_CORES=112
SITE_CPU_MEMORY=494000M    # not confirmed for DCGP: sinfo -p dcgp_usr_prod -o %m
SITE_CPU_TIME=24:00:00
SITE_CPU_OPTIONS=--exclusive

SITE_GPU_PARTITION=boost_usr_prod
SITE_GPU_QOS=none          # boost_qos_bprod for many nodes (a minimum applies), boost_qos_dbg for tests
SITE_GPUS=4
SITE_GPU_CORES=32
SITE_GPU_MEMORY=494000M
SITE_GPU_TIME=24:00:00
SITE_GPU_OPTIONS=--exclusive

SITE_INTERFACE=ib0         # as in public job scripts: the other interfaces are not routed between nodes
SITE_NODE_LOCAL=/tmp       # DCGP nodes have a local disk, Booster nodes have none: /tmp is small there
SITE_PREFLIGHT=full
SITE_PREFLIGHT_LIMITS="--min-memory 300GiB"
SITE_PUE=                  # not found in public sources
SITE_CARBON=               # not found in public sources

site_setup() {
    export PYTORCH_ALLOC_CONF=expandable_segments:True # less fragmentation of torch's memory
    export NCCL_SOCKET_IFNAME=$SITE_INTERFACE GLOO_SOCKET_IFNAME=$SITE_INTERFACE NCCL_IB_HCA=mlx5
}
