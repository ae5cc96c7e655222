#!/usr/bin/env bash
# A real Slurm cluster on one Debian machine, for the tests: three nodes, partitions `cpu` (node1-3) and `gpu`
# (the same, four pretended GPUs each). cluster-down.sh stops exactly what this starts. Needs root.
#
# Every node is a network, hostname, process and mount namespace of its own, with its own /dev/shm and its own local disk
# ($SLURMLAB_DIR/local); every other file is shared, as on a cluster with a parallel file system. The namespaces
# have no route out and no DNS; nothing is added to the machine's own network. Idempotent: a cluster that is up and
# healthy is left alone, half of one is taken down and started anew.
#
# Commands land in $SLURMLAB_DIR/bin (put it first on PATH): sbatch srun scancel squeue sinfo scontrol, and
#   node-exec NODE COMMAND...   a command inside a node      node-crash NODE   kill a node with all that is on it
#   node-boot NODE              start a crashed node again
# A process that outlives its job is written to $SLURMLAB_DIR/log/strays.log before it is ended, so a test can ask.
set -euo pipefail

LAB=${SLURMLAB_DIR:-/tmp/pretok-slurm}
PREFIX=${SLURMLAB_PREFIX:-ptk}       # of the namespaces: another prefix, folder and net make a second cluster
NET=${SLURMLAB_NET:-10.78.0}
NODES=3 GPU_NODES=3 CPUS=4 MEMORY=8000 GPUS=4
HERE=$(cd "$(dirname "$0")" && pwd)
RUN=$LAB/run ETC=$LAB/etc LOG=$LAB/log BIN=$LAB/bin

say() { echo "cluster-up: $*"; }
die() { echo "cluster-up: ERROR: $*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || die "needs root (network namespaces, slurmd)"
mkdir -p "$LAB"
chmod go-w "$LAB"
exec 9>"$LAB/.lock"
flock -w 120 9 || die "another cluster-up.sh holds $LAB/.lock"

count_nodes() { # state regex -> how many nodes are in it
    [ -x "$BIN/sinfo" ] || { echo 0; return; }
    { timeout 10 "$BIN/sinfo" -h -N -o '%N %t' 2>/dev/null || true; } | sort -u | grep -cE " ($1)\$" || true
}

if [ -s "$RUN/pids" ]; then
    if [ "$(count_nodes 'idle|mix|alloc|comp')" = "$NODES" ]; then say "already up"; exit 0; fi
    say "a half of a cluster is there: taking it down first"
    bash "$HERE/cluster-down.sh" --locked 9>&-
fi

install_packages() {
    local need=()
    command -v slurmctld >/dev/null || need+=(slurmctld)
    command -v slurmd >/dev/null || need+=(slurmd)
    command -v sbatch >/dev/null || need+=(slurm-client)
    command -v munged >/dev/null || need+=(munge)
    command -v ip >/dev/null || need+=(iproute2)
    ((${#need[@]})) || return 0
    say "installing ${need[*]}"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -q && apt-get install -q -y --no-install-recommends "${need[@]}"; } >"$LAB/apt.log" 2>&1 9>&- ||
        { tail -n 20 "$LAB/apt.log" >&2; die "apt-get failed ($LAB/apt.log)"; }
}

write_configuration() {
    rm -rf "$RUN" "$ETC" "$BIN" "$LOG"
    mkdir -p "$RUN/state" "$RUN/munge" "$ETC/dev" "$LOG" "$BIN" "$LAB/local"
    chmod 755 "$RUN" "$RUN/munge"
    (umask 077; head -c 1024 /dev/urandom >"$ETC/munge.key")
    cat >"$ETC/slurm.conf" <<CONF
ClusterName=pretok
SlurmctldHost=slurmctl($NET.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# cred_expire is how long a requeued job waits (default 120 s)
AuthInfo=socket=$RUN/munge/munge.socket,cred_expire=5
StateSaveLocation=$RUN/state
SlurmdSpoolDir=$RUN/spool.%n
SlurmctldPidFile=$RUN/slurmctld.pid
SlurmdPidFile=$RUN/slurmd.%n.pid
SlurmctldLogFile=$LOG/slurmctld.log
SlurmdLogFile=$LOG/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0,bf_continue
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
Epilog=$BIN/.epilog
PropagateResourceLimits=NONE
ReturnToService=2
SlurmdTimeout=10
KillWait=10
MinJobAge=3600
DefMemPerCPU=500
GresTypes=gpu
PartitionName=cpu Nodes=node[1-$NODES] Default=YES DefaultTime=10 MaxTime=60 State=UP
PartitionName=gpu Nodes=node[1-$GPU_NODES] DefaultTime=10 MaxTime=60 State=UP
CONF
    # the cgroup plugin's search fails where /sys/fs/cgroup is not mounted; naming one skips it and needs no cgroup
    printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' >"$ETC/cgroup.conf"
    echo "AutoDetect=off" >"$ETC/gres.conf"
    printf '127.0.0.1 localhost\n%s.1 slurmctl %s\n' "$NET" "$(hostname)" >"$ETC/hosts"
    local i gres
    for ((i = 0; i < GPUS; i++)); do mknod -m 666 "$ETC/dev/gpu$i" c 1 3; done  # File= must be a device node
    for ((i = 1; i <= NODES; i++)); do
        gres=""
        if ((i <= GPU_NODES)); then
            gres=" Gres=gpu:$GPUS"
            echo "NodeName=node$i Name=gpu File=$ETC/dev/gpu[0-$((GPUS - 1))]" >>"$ETC/gres.conf"
        fi
        echo "NodeName=node$i NodeAddr=$NET.$((10 + i)) CPUs=$CPUS RealMemory=$MEMORY$gres" >>"$ETC/slurm.conf"
        echo "$NET.$((10 + i)) node$i" >>"$ETC/hosts"
    done
}

make_namespace() { # NAME -> a network namespace with loopback, our hosts file and no name servers
    if [ -e "/run/netns/$1" ]; then
        [ -z "$(ip netns pids "$1")" ] || die "namespace $1 is in use by another cluster; set SLURMLAB_PREFIX"
        ip netns del "$1"
    fi
    ip netns add "$1" || die "cannot make network namespaces here (CAP_SYS_ADMIN and CAP_NET_ADMIN)"
    echo "$1" >>"$RUN/netns"
    mkdir -p "/etc/netns/$1"
    cp "$ETC/hosts" "/etc/netns/$1/hosts"
    : >"/etc/netns/$1/resolv.conf"
    ip -n "$1" link set lo up
}

make_network() {
    local i
    make_namespace "$PREFIX-ctl"
    ip -n "$PREFIX-ctl" link add br0 type bridge
    ip -n "$PREFIX-ctl" addr add "$NET.1/24" dev br0
    ip -n "$PREFIX-ctl" link set br0 up
    for ((i = 1; i <= NODES; i++)); do
        make_namespace "$PREFIX-node$i"
        ip -n "$PREFIX-ctl" link add "v$i" type veth peer name eth0 netns "$PREFIX-node$i"
        ip -n "$PREFIX-ctl" link set "v$i" master br0 up
        ip -n "$PREFIX-node$i" addr add "$NET.$((10 + i))/24" dev eth0
        ip -n "$PREFIX-node$i" link set eth0 up
    done
}

write_daemons() {
    cat >"$BIN/.ctl-init" <<INIT
#!/bin/bash
hostname slurmctl
export SLURM_CONF=$ETC/slurm.conf
munged --foreground --key-file=$ETC/munge.key --socket=$RUN/munge/munge.socket --pid-file=$RUN/munge/munged.pid \\
    --seed-file=$RUN/munge/munged.seed --log-file=$LOG/munged.log --num-threads=2 &
until [ -S $RUN/munge/munge.socket ]; do sleep 0.05; done
slurmctld -D &
wait \$!
INIT
    cat >"$BIN/.node-init" <<INIT
#!/bin/bash
hostname "\$1"
mkdir -p $RUN/spool."\$1"
mount -t tmpfs -o size=2g,mode=1777 shm-"\$1" /dev/shm
mount -t tmpfs -o size=2g,mode=1777 local-"\$1" $LAB/local
export SLURM_CONF=$ETC/slurm.conf
slurmd -D -N "\$1" &
wait \$!
INIT
    # Real clusters end what is left of a job by its cgroup; here the job id in a process's environment finds it.
    cat >"$BIN/.epilog" <<INIT
#!/bin/bash
for e in /proc/[0-9]*/environ; do
    p=\${e//[!0-9]/}
    [ "\$p" = \$\$ ] && continue
    tr '\\0' '\\n' <"\$e" 2>/dev/null | grep -qx "SLURM_JOB_ID=\$SLURM_JOB_ID" || continue
    command=\$(tr '\\0' ' ' <"/proc/\$p/cmdline" 2>/dev/null)
    case \$command in "" | *.epilog* | slurmstepd*) continue ;; esac
    echo "\$SLURM_JOB_ID \$(hostname) \$p \$command" >>$LOG/strays.log
    kill -KILL "\$p" 2>/dev/null
done
exit 0
INIT
    cat >"$BIN/.start" <<INIT
#!/bin/bash
# .start NAMESPACE INIT ARGUMENTS...: start daemons under a process namespace, record "pid starttime namespace"
ns=\$1; shift
# the daemons' environment is not that of whoever called; jobs get theirs from sbatch
env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \\
    setsid ip netns exec "\$ns" unshare --uts --pid --fork --kill-child=KILL --mount-proc -- "\$@" \\
    </dev/null >>"$LOG/\$ns.out" 2>&1 &
pid=\$!
start=\$(sed 's/.*) //' "/proc/\$pid/stat" | cut -d' ' -f20)
{ grep -v " \$ns\$" "$RUN/pids" 2>/dev/null; echo "\$pid \$start \$ns"; } >"$RUN/pids.new"
mv "$RUN/pids.new" "$RUN/pids"
INIT
    cat >"$BIN/node-crash" <<INIT
#!/bin/bash
read -r pid start _ < <(grep " $PREFIX-\$1\$" "$RUN/pids") || { echo "no node \$1" >&2; exit 1; }
[ "\$(sed 's/.*) //' "/proc/\$pid/stat" 2>/dev/null | awk '\$1 != "Z" {print \$20}')" = "\$start" ] || exit 0
kill -KILL "\$pid"
while [ -n "\$(ip netns pids $PREFIX-\$1)" ]; do sleep 0.05; done
INIT
    cat >"$BIN/node-boot" <<INIT
#!/bin/bash
read -r pid start _ < <(grep " $PREFIX-\$1\$" "$RUN/pids") || { echo "no node \$1" >&2; exit 1; }
[ "\$(sed 's/.*) //' "/proc/\$pid/stat" 2>/dev/null | awk '\$1 != "Z" {print \$20}')" = "\$start" ] && exit 0
exec "$BIN/.start" "$PREFIX-\$1" "$BIN/.node-init" "\$1"
INIT
    cat >"$BIN/node-exec" <<INIT
#!/bin/sh
node=\$1; shift
outer=\$(awk -v n="$PREFIX-\$node" '\$3==n{print \$1}' $RUN/pids)
inner=\$(cut -d' ' -f1 "/proc/\$outer/task/\$outer/children")
exec nsenter -t "\$inner" -n -u -p -m --wdns="\$PWD" "\$@"
INIT
    local client
    for client in sbatch srun squeue sinfo scancel scontrol; do # inside a node, call the real one
        cat >"$BIN/$client" <<INIT
#!/bin/sh
export SLURM_CONF=$ETC/slurm.conf
[ -n "\$SLURMD_NODENAME" ] && exec /usr/bin/$client "\$@"
exec ip netns exec $PREFIX-ctl /usr/bin/$client "\$@"
INIT
    done
    chmod +x "$BIN"/* "$BIN"/.[a-z]*
}

install_packages
write_configuration
make_network
write_daemons
"$BIN/.start" "$PREFIX-ctl" "$BIN/.ctl-init" 9>&-
for _ in $(seq 100); do [ -S "$RUN/munge/munge.socket" ] && break; sleep 0.05; done
[ -S "$RUN/munge/munge.socket" ] || die "munged did not start: $(tail -n 3 "$LOG/munged.log" "$LOG/$PREFIX-ctl.out" 2>&1)"
for ((i = 1; i <= NODES; i++)); do "$BIN/.start" "$PREFIX-node$i" "$BIN/.node-init" "node$i" 9>&-; done
for _ in $(seq 120); do
    if [ "$(count_nodes idle)" = "$NODES" ]; then
        "$BIN/sinfo"
        say "up; put $BIN first on PATH"
        exit 0
    fi
    sleep 0.25
done
tail -n 15 "$LOG"/*.log >&2 || true
die "the nodes are not idle after 30 s"
