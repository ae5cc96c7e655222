# What the links of a chain share: done markers, progress, the check of the nodes, and what to do when one is lost.
# Sourced after env.sh.
# The chain's folder, PRETOK_CHAIN, holds chain.tsv (job id, stage, link), logs, markers; a job submitted by hand has none.
# shellcheck shell=bash disable=SC2154

chain=${PRETOK_CHAIN:-}
guards=() # processes of link_guard

link_followers() { # STAGE: job ids of the chain's links of this stage, started or not
    if [ -n "$chain" ]; then awk -v stage="$1" '$2 == stage {print $1}' "$chain/chain.tsv"; fi
}

link_begin() { # STAGE: end at once when the chain has finished it
    if [ -n "$chain" ] && [ -e "$chain/done-$1" ]; then say "$1 is complete, nothing to do"; exit 0; fi
}

link_progress() { # STAGE PROGRESS: stop the chain when its last two links left PROGRESS as it is
    [ -n "$chain" ] || return 0
    echo "$2" >>"$chain/progress-$1"
    if [ "$(tail -n 3 "$chain/progress-$1" | uniq -c | awk 'NR == 1 {print $1}')" = 3 ]; then
        say "the last two links got no further than '${2:-the start}': the chain stops. Read their logs in $chain, fix" \
            "the cause, submit again" >&2
        link_cancel "$1"
        exit 1
    fi
}

link_cancel() { # STAGE: cancel the chain's links that have not started
    link_followers "$1" | xargs -r scancel --state=PENDING
}

link_end() { # STAGE STATUS: mark the stage as done, explain the exit code, end the job
    local status=$2
    if [ "$status" = 138 ]; then status=75; fi # ended by SIGUSR1 before it could listen: nothing begun, nothing lost
    case $status in
        0) if [ -n "$chain" ]; then touch "$chain/done-$1"; fi ;;
        75) say "stopped early, as the lines above say; the next link, or the same command again, continues" ;;
        2)
            say "$1 refused its settings or its input (exit code 2): the next links would too, they are cancelled" >&2
            link_cancel "$1"
            ;;
        *) say "$1 ended with exit code $status" >&2 ;;
    esac
    exit "$status"
}

link_steps() { # NODE...: options of srun for one task on each of these nodes, whatever else runs there
    # Given in full: once a node is lost, the SLURM_* variables name nodes that the job no longer has.
    local IFS=,
    echo "--overlap --nodes=$# --ntasks=$# --nodelist=$*"
}

link_answering() { # NODE...: those on which a step can be started
    local node
    for node in "$@"; do
        # shellcheck disable=SC2046
        { timeout 60 srun $(link_steps "$node") true 2>/dev/null && echo "$node"; } &
    done
    wait
}

link_avoid() { # STAGE NODES: keep the next links of the stage away from these nodes (with commas)
    local job
    say "failed nodes: $2" >&2
    [ -n "$chain" ] || return 0
    tr , '\n' <<<"$2" >>"$chain/bad-nodes"
    for job in $(link_followers "$1"); do # only a job that has not started can be changed
        if [ "$job" -gt "$SLURM_JOB_ID" ]; then
            scontrol update jobid="$job" excnodelist="$(sort -u "$chain/bad-nodes" | paste -sd,)"
        fi
    done
}

link_guard() { # COMMAND NODE...: let the last node give the job's id to COMMAND when the first, where this script runs, dies
    # With --no-kill Slurm would keep the other nodes, on which nothing is left that works, to the time limit. A job with
    # GPUs is better ended than requeued: of its --no-kill Slurm (22.05) makes a job without them.
    [ "$#" -gt 2 ] || return 0
    local alive=$logs/alive-$SLURM_JOB_ID
    link_unguard # before a restart there is another
    touch "$alive"
    # read: a sleep that is no process, and so never outlives the job.
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

link_unguard() { # end the guards: an srun whose node is gone does not end when it is asked to
    rm -f "$logs/alive-$SLURM_JOB_ID"
    kill "${guards[@]}" 2>/dev/null || return 0
    for _ in {1..20}; do
        kill -0 "${guards[@]}" 2>/dev/null || return 0
        read -rt 0.1 <> <(:) || true
    done
    kill -KILL "${guards[@]}" 2>/dev/null || true
}

link_preflight() { # STAGE FOLDER WANTED OPTIONS of `pretok preflight`...: check $nodes; bad ones are taken out of it
    # The job ends when fewer than WANTED are left, and the next link is kept away from the bad ones.
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
