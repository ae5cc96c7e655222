# Discoverer (Sofia Tech Park): CPU nodes for text; its GPU partition is not known here. Fill in the empty values.
# shellcheck shell=bash disable=SC2034
#
# Sources: docs.discoverer.bg/resource_overview as public repositories quote it (1,110 nodes of 2 x 64 cores, 256 GB, no local
# disk); docs.discoverer.bg/computational_resources_allocation (an account for each project); job scripts in public repositories
# (partition cn, with the account's name as QOS).
# No run of this project has used this machine yet.

SITE_ACCOUNT=              # not known: sacctmgr -n show assoc user=$USER format=account,qos
SITE_VENV=                 # on the shared file system; for hundreds of workers unpack it on each node, see slurm/README.md

SITE_CPU_PARTITION=cn
SITE_CPU_QOS=              # the name of your account
SITE_CPU_CORES=128
SITE_CPU_MEMORY=0          # all memory of a node of 256 GB
SITE_CPU_TIME=             # not found in public sources: sinfo -o '%P %l'
SITE_CPU_OPTIONS=--exclusive

SITE_GPU_PARTITION=         # not known: Discoverer+ is a system of its own
SITE_GPU_QOS=none
SITE_GPUS=
SITE_GPU_CORES=
SITE_GPU_MEMORY=
SITE_GPU_TIME=          # not known
SITE_GPU_OPTIONS=--exclusive

SITE_INTERFACE=            # not known: check with `ip -br addr` on a node; empty: the address of the node name
SITE_NODE_LOCAL=/tmp       # in memory: the nodes have no disk
SITE_PREFLIGHT=full
SITE_PREFLIGHT_LIMITS="--min-memory 190GiB"
SITE_PUE=                  # not found in public sources
SITE_CARBON=               # not found in public sources
