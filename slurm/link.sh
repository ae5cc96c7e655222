# Functions for the links of a chain of jobs: done markers, progress, the check of the nodes, and lost nodes.
# Source it after env.sh.
# PRETOK_CHAIN is the chain's folder, with chain.tsv (job id, stage, link), logs and markers. Jobs submitted by hand have
# none.
# shellcheck shell=bash disable=SC2154

chain=${PRETOK_CHAIN:-}
guards=() # process ids that link_guard started

link_followers() { # STAGE: print the job ids of this stage's links, started or not
    if [ -n "$chain" ]; then awk -v stage="$1" '$2 == stage {print $1}' "$chain/chain.tsv"; fi
}

link_begin() { # STAGE: exit at once if the chain has finished this stage
    if [ -n "$chain" ] && [ -e "$chain/done-$1" ]; then say "$1 is complete, nothing to do"; exit 0; fi
}

link_progress() { # STAGE PROGRESS: stop the chain if its last two links did not change PROGRESS
    [ -n "$chain" ] || return 0
    echo "$2" >>"$chain/progress-$1"
    if [ "$(tail -n 3 "$chain/progress-$1" | uniq -c | awk 'NR == 1 {print $1}')" = 3 ]; then
        say "the last two links made no progress beyond '${2:-the start}': the chain stops. Read their logs in" \
            "$chain, fix the cause, submit again" >&2
        link_cancel "$1"
        exit 1
    fi
}

link_cancel() { # STAGE: cancel the links of this stage that have not started
    link_followers "$1" | xargs -r scancel --state=PENDING || true # it fails for a link that Slurm has forgotten
}

link_end() { # STAGE STATUS: mark the stage as done, explain the exit code, end the job
    local status=$2
    if [ "$status" = 138 ]; then status=75; fi # killed by SIGUSR1 before its handler was set: nothing had begun
    case $status in
        0) if [ -n "$chain" ]; then touch "$chain/done-$1"; fi ;;
        75) say "stopped early, for the reason above; the next link, or the same command again, resumes it" ;;
        2)
            say "$1 refused its settings or its input (exit code 2): the next links are cancelled" >&2
            link_cancel "$1"
            ;;
        *) say "$1 ended with exit code $status" >&2 ;;
    esac
    exit "$status"
}

link_steps() { # NODE...: print srun options for one task on each of these nodes, even while others run there
    # All options are given, because the SLURM_* variables still name lost nodes.
    local IFS=,
    echo "--overlap --nodes=$# --ntasks=$# --nodelist=$*"
}

link_compiled() { # load|save NODE...: copy compiled code from an earlier link to the nodes' own disks, or back from one
    # It is in $logs and not in the run's folder, because compiled code can do anything and a run may be somebody else's.
    # shellcheck disable=SC2016,SC2046
    srun $(link_steps "${@:2}") --wait=60 bash -c '
        here=$1 there=$2/compiled.tar
        if [ "$3" = load ]; then
            if [ -e "$there" ]; then mkdir -p "$here" && tar -xf "$there" -C "$here"; fi
        elif [ -d "$here/inductor" ]; then
            tar -cf "$there.$$" -C "$here" $(cd "$here" && ls -d inductor triton 2>/dev/null) && mv "$there.$$" "$there"
        fi' _ "$node_local" "$logs" "$1" || true # without it the next link compiles again
}

link_stage() { # NODE...: copy shards and mix to the fast part of the file system, a share of the files by each node
    [ -n "${PRETOK_STAGE:-}" ] || return 0
    # shellcheck disable=SC2016,SC2046
    srun $(link_steps "$@") --wait=60 bash -c 'exec python -m pretok.stream.staging "$1" "$2" "$SLURM_NODEID" "$3"' \
        _ "$PRETOK_WORK" "$PRETOK_STAGE" "$#"
}

link_answering() { # NODE...: print those on which a step can be started
    local node
    for node in "$@"; do
        # shellcheck disable=SC2046
        { timeout 60 srun $(link_steps "$node") true 2>/dev/null && echo "$node"; } &
    done
    wait
}

link_avoid() { # STAGE NODES: exclude these nodes (separated by commas) from the next links of the stage
    local job
    say "failed nodes: $2" >&2
    [ -n "$chain" ] || return 0
    tr , '\n' <<<"$2" >>"$chain/bad-nodes"
    for job in $(link_followers "$1"); do # only jobs that have not started can be changed
        if [ "$job" -gt "$SLURM_JOB_ID" ]; then
            scontrol update jobid="$job" excnodelist="$(sort -u "$chain/bad-nodes" | paste -sd,)" || true # that link may be gone
        fi
    done
}

link_guard() { # COMMAND NODE...: let the last node run COMMAND with the job id if the first node (of this script) dies
    # With --no-kill Slurm would otherwise keep the other nodes, idle, until the time limit. COMMAND for a job with GPUs
    # must end the job, not requeue it: Slurm (22.05) requeues a --no-kill job without its GPUs.
    [ "$#" -gt 2 ] || return 0
    local alive=$logs/alive-$SLURM_JOB_ID
    link_unguard # end the guard of the previous start
    touch "$alive"
    # `read` with a timeout sleeps without a child process that could outlive the job.
    (while [ -e "$alive" ]; do read -rt 10 <> <(:) || touch -c "$alive"; done) &
    guards=($!)
    # shellcheck disable=SC2016,SC2046
    srun $(link_steps "${@: -1}") bash -c '
        while [ -e "$1" ] && sleep 10; do
            if [ $(($(date +%s) - $(stat -c %Y "$1" || date +%s))) -gt "$2" ]; then $3 "$SLURM_JOB_ID"; fi
        done' _ "$alive" "${PRETOK_GUARD_SECONDS:-180}" "$1" >/dev/null 2>&1 &
    guards+=($!)
    trap link_unguard EXIT
}

link_unguard() { # end the guards; with KILL in the end, as an srun whose node is gone ignores TERM
    rm -f "$logs/alive-$SLURM_JOB_ID"
    kill "${guards[@]}" 2>/dev/null || return 0
    for _ in {1..20}; do
        kill -0 "${guards[@]}" 2>/dev/null || return 0
        read -rt 0.1 <> <(:) || true
    done
    kill -KILL "${guards[@]}" 2>/dev/null || true
}

link_preflight() { # STAGE FOLDER WANTED OPTIONS of `pretok preflight`...: check $nodes and remove bad ones from it
    # If fewer than WANTED are left, the job ends. The next links exclude the bad nodes.
    local stage=$1 wanted=$3 bad node good=() limits reports=$logs/preflight-$SLURM_JOB_ID${restarts:+-$restarts}
    [ "${SITE_PREFLIGHT:-full}" != none ] || return 0
    mkdir -p "$reports" "$2"
    read -ra limits <<<"${SITE_PREFLIGHT_LIMITS:-}"
    # shellcheck disable=SC2046
    srun $(link_steps "${nodes[@]}") --wait=60 --output="${reports//%/%%}/%N-node.json" \
        timeout 120 python -m pretok preflight "$2" "${@:4}" "${limits[@]}" --json || true
    if [ "$stage" = train ] && [ "${SITE_PREFLIGHT:-full}" = full ]; then
        (SLURM_STDOUTMODE="${reports//%/%%}/%N-torch.json" on_each "${nodes[@]}" -m train.preflight) || true
    fi
    bad=$(IFS=,; echo "${nodes[*]}")
    if bad=$(python -m pretok preflight "$reports" --collect --nodes "$bad"); then return 0; fi
    [ -n "$bad" ] || exit 1
    link_avoid "$stage" "$bad"
    for node in "${nodes[@]}"; do if [[ ,$bad, != *,$node,* ]]; then good+=("$node"); fi; done
    nodes=("${good[@]}")
    if [ "${#nodes[@]}" -lt "$wanted" ]; then exit 1; fi
}
