# ray_run COMMAND...: run COMMAND on the job's first node. In a job of several nodes it gets `--address auto`, and
# RAY_ADDRESS is that of a Ray cluster over all of them; on one node its workers are processes, and there is no Ray.
# Returns COMMAND's exit code, or 1 when the Ray head ended first; nothing of Ray is left in either case. A worker node
# that dies costs its running tasks only. SIGUSR1 and SIGTERM reach COMMAND, which stops in time and returns 75.
# ray_stage STAGE OUT COMMAND ARGUMENTS...: a link of a chain that runs a `pretok` command so.
# shellcheck shell=bash disable=SC2154

source "$slurm/link.sh"

ray_node() { # NODE RAY_START_OPTIONS...: Ray on one node, until it is ended
    # A step per node: Slurm ends a whole step when one of its nodes is gone. exec: this process is srun itself.
    # 200 MiB of object store: tasks meet on disk, only small records travel through Ray.
    # That a node without a route out has no external address is no news, hence the grep.
    exec srun --overlap -N1 -n1 -w "$1" ray start --block --temp-dir="$node_local" \
        --num-gpus=0 --num-cpus="$SRUN_CPUS_PER_TASK" --object-store-memory=$((200 << 20)) "${@:2}" \
        > >(grep -v --line-buffered 'local IP via external connectivity' >"$ray_log-$1.log") 2>&1
}

ray_sweep() { # NODE: end what Ray left there and remove the node's local folder
    # Its agents outlive a head that died for some seconds; they are known by their log files, open in that folder.
    # shellcheck disable=SC2016
    srun --overlap -N1 -n1 -w "$1" bash -c '
        find /proc/[0-9]*/fd -lname "$1/*" 2>/dev/null | cut -d/ -f3 | sort -u | xargs -r kill -KILL
        rm -rf "$1"' _ "$node_local" 2>/dev/null
}

ray_answers() { (exec 3<>"/dev/tcp/${RAY_ADDRESS%:*}/$port") 2>/dev/null; }
ray_joined() { grep -ls 'Ray runtime started' "$ray_log"-*.log | wc -l; }
ray_alive() { # the nodes whose Ray is running
    local node
    for node in "${!ray_steps[@]}"; do if kill -0 "${ray_steps[$node]}" 2>/dev/null; then echo "$node"; fi; done
}

ray_start() { # HEAD WORKERS...: fails when the head does not come up
    local node end=$((SECONDS + 120))
    ray_node "$1" --head --node-ip-address="${RAY_ADDRESS%:*}" --port="$port" --include-dashboard=false &
    ray_steps[$1]=$!
    until ray_answers; do
        if ((SECONDS > end)) || ! kill -0 "${ray_steps[$1]}" 2>/dev/null; then
            say "the Ray head on $1 did not start; see $ray_log-$1.log" >&2
            return 1
        fi
        sleep 0.2
    done
    for node in "${@:2}"; do
        ray_node "$node" --address="$RAY_ADDRESS" &
        ray_steps[$node]=$!
    done
    while (($(ray_joined) < $(ray_alive | wc -l) && SECONDS < end)); do sleep 0.2; done
    say "Ray runs on $(ray_joined) of $# nodes ($SLURM_JOB_NODELIST)"
}

ray_watch() { # HEAD: wait for the driver; its exit code, or 1 when the head ended before it
    local node status=0
    while kill -0 "$ray_driver" 2>/dev/null; do
        for node in "${!ray_steps[@]}"; do
            if [ -n "$ray_cancelled" ] || kill -0 "${ray_steps[$node]}" 2>/dev/null; then continue; fi
            if [ "$node" = "$1" ]; then
                say "the Ray head on $1 ended in mid-job (see $ray_log-$1.log). What is finished is on disk;" \
                    "the next link of the chain, or the same command again, continues from there" >&2
                kill -KILL "$ray_driver" 2>/dev/null # it would wait long for a head that is gone
                return 1
            fi
            say "lost node $node (see $ray_log-$node.log); going on without it" >&2
            unset "ray_steps[$node]"
        done
        sleep 1 & # in the background, so that a trapped signal is handled at once
        wait $! || true
    done
    wait "$ray_driver" || status=$?
    return "$status"
}

ray_stop() { # HEAD: end Ray on every node
    local node nodes sweeps=()
    mapfile -t nodes < <(ray_alive)
    for node in "${nodes[@]}"; do kill -TERM "${ray_steps[$node]}" 2>/dev/null || true; done # srun ends its step
    wait "${ray_steps[@]}" 2>/dev/null || true
    if [ -n "$ray_cancelled" ]; then return; fi # a job that is being cancelled may start no more steps
    for node in "$1" "${nodes[@]}"; do ray_sweep "$node" & sweeps+=($!); done
    wait "${sweeps[@]}" || true
}

ray_run() {
    local nodes status=0
    mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    declare -gA ray_steps=() # node -> process id of its srun
    ray_cancelled='' ray_driver=''
    ray_log=$logs/ray-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}
    RAY_ADDRESS=$(node_address "${nodes[0]}"):$port
    # Who can reach the port could run code as this user: a fresh secret per job, handed on by srun.
    RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
    export RAY_ADDRESS RAY_AUTH_TOKEN RAY_AUTH_MODE=token
    export RAY_gcs_rpc_server_reconnect_timeout_s=20 # a worker whose head is gone ends after this
    # What workers read when they start; all else pretok.base.execute sets in them.
    export MALLOC_ARENA_MAX=2 ARROW_DEFAULT_MEMORY_POOL=jemalloc
    if ((${#nodes[@]} > 1)); then set -- "$@" --address auto; fi

    trap 'kill -USR1 $ray_driver 2>/dev/null || true' USR1
    trap 'ray_cancelled=1; kill -TERM $ray_driver 2>/dev/null || true' TERM
    if ((${#nodes[@]} == 1)) || ray_start "${nodes[@]}"; then
        "$@" &
        ray_driver=$!
        ray_watch "${nodes[0]}" || status=$?
    else
        status=1
    fi
    if ((${#nodes[@]} > 1)); then ray_stop "${nodes[0]}"; fi
    trap - USR1 TERM
    return "$status"
}

ray_stage() {
    local status=0 nodes
    link_begin "$1"
    mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    link_preflight "$1" "$2" "${#nodes[@]}"
    link_guard "scontrol requeue" "${nodes[@]}"
    ray_run python -m pretok "${@:3}" --out "$2" || status=$?
    link_end "$1" "$status"
}
