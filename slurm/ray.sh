# ray_run COMMAND...: run COMMAND on the first node of the job. In a job of several nodes it gets `--address auto`, and
# RAY_ADDRESS is the address of a Ray cluster over all of them. On a single node its workers are processes, without Ray.
# Returns the exit code of COMMAND, or 1 if the Ray head ended first; nothing of Ray remains in either case. If a worker
# node dies, only its running tasks are lost. SIGUSR1 and SIGTERM are passed to COMMAND, which stops and returns 75.
# ray_stage STAGE OUT COMMAND ARGUMENTS...: run a `pretok` command with ray_run as a link of a chain.
# shellcheck shell=bash disable=SC2154

source "$slurm/link.sh"

ray_node() { # NODE RAY_START_OPTIONS...: run Ray on one node until it is terminated
    # One step per node: Slurm ends a whole step if one of its nodes is lost. exec: the pid of this process is srun's.
    # 200 MiB of object store are enough: tasks exchange data on disk, and only small records through Ray.
    # grep removes the expected warning that a node without internet has no external address.
    exec srun --overlap -N1 -n1 -w "$1" ray start --block --temp-dir="$node_local" \
        --num-gpus=0 --num-cpus="$SRUN_CPUS_PER_TASK" --object-store-memory=$((200 << 20)) "${@:2}" \
        > >(grep -v --line-buffered 'local IP via external connectivity' >>"$ray_log-$1.log") 2>&1
}

ray_sweep() { # NODE: kill processes that Ray left there, and remove the node's local folder
    # Ray's agents outlive a dead head by some seconds. They are found by their log files, open in that folder.
    # shellcheck disable=SC2016
    srun --overlap -N1 -n1 -w "$1" bash -c '
        find /proc/[0-9]*/fd -lname "$1/*" 2>/dev/null | cut -d/ -f3 | sort -u | xargs -r kill -KILL
        rm -rf "$1"' _ "$node_local" 2>/dev/null
}

ray_answers() { (exec 3<>"/dev/tcp/${RAY_ADDRESS%:*}/$port") 2>/dev/null; }
ray_joined() { grep -ls 'Ray runtime started' "$ray_log"-*.log | wc -l; }
ray_alive() { # print the nodes on which Ray is running
    local node
    for node in "${!ray_steps[@]}"; do if kill -0 "${ray_steps[$node]}" 2>/dev/null; then echo "$node"; fi; done
}

ray_start() { # HEAD WORKERS...: start the cluster; fails if the head does not start
    local node end=$((SECONDS + 120)) lost=0
    local -A tries=()
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
    # Ray gives a node 30 seconds to start, which a busy file system can use up.
    while (($(ray_joined) + lost < $# && SECONDS < end)); do
        sleep 0.2
        lost=0
        for node in "${@:2}"; do
            if kill -0 "${ray_steps[$node]}" 2>/dev/null; then continue; fi
            if ((tries[$node]++)); then
                lost=$((lost + 1))
                continue
            fi
            say "Ray did not start on $node (see $ray_log-$node.log); trying once more" >&2
            { ray_sweep "$node" || true; ray_node "$node" --address="$RAY_ADDRESS"; } &
            ray_steps[$node]=$!
        done
    done
    say "Ray runs on $(ray_joined) of $# nodes ($SLURM_JOB_NODELIST)"
}

ray_watch() { # HEAD: wait for the driver; return its exit code, or 1 if the head ended first
    local node status=0
    while kill -0 "$ray_driver" 2>/dev/null; do
        for node in "${!ray_steps[@]}"; do
            if [ -n "$ray_cancelled" ] || kill -0 "${ray_steps[$node]}" 2>/dev/null; then continue; fi
            if [ "$node" = "$1" ]; then
                say "the Ray head on $1 ended during the job (see $ray_log-$1.log). Finished parts are on disk;" \
                    "the next link of the chain, or the same command again, resumes from there" >&2
                kill -KILL "$ray_driver" 2>/dev/null # it would wait a long time for the lost head
                return 1
            fi
            say "lost node $node (see $ray_log-$node.log); continuing without it" >&2
            unset "ray_steps[$node]"
        done
        sleep 1 & # in the background: `wait` is interrupted by a trapped signal, a foreground sleep is not
        wait $! || true
    done
    wait "$ray_driver" || status=$?
    return "$status"
}

ray_stop() { # HEAD: stop Ray on every node
    local node nodes sweeps=()
    mapfile -t nodes < <(ray_alive)
    for node in "${nodes[@]}"; do kill -TERM "${ray_steps[$node]}" 2>/dev/null || true; done # srun then ends its step
    wait "${ray_steps[@]}" 2>/dev/null || true
    if [ -n "$ray_cancelled" ]; then return; fi # a job that is being cancelled cannot start steps
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
    # Anyone who can reach the port could run code as this user. So each job has a new secret, which srun passes on.
    RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
    export RAY_ADDRESS RAY_AUTH_TOKEN RAY_AUTH_MODE=token
    export RAY_gcs_rpc_server_reconnect_timeout_s=20 # seconds after which a worker without a head ends
    # Workers read these when they start; pretok.base.execute sets everything else in them.
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
