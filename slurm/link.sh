# What the links of a chain share: done markers, progress, the check of the nodes. Sourced after env.sh.
# The chain's folder, PRETOK_CHAIN, holds chain.tsv (job id, stage, link), logs, markers; a job submitted by hand has none.
# shellcheck shell=bash disable=SC2154

chain=${PRETOK_CHAIN:-}

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
        say "the last two links got no further than '${2:-the start}': the chain stops. Read their logs in $chain, mend" \
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
        75) say "stopped in time; the next link, or the same command again, continues" ;;
        2)
            say "$1 refused its settings or its input (exit code 2): the next links would too, they are cancelled" >&2
            link_cancel "$1"
            ;;
        *) say "$1 ended with exit code $status" >&2 ;;
    esac
    exit "$status"
}

link_preflight() { # STAGE FOLDER OPTIONS of `pretok preflight`...: check every node; a bad one is kept out of the next link
    local stage=$1 job bad limits reports=$logs/preflight-$SLURM_JOB_ID
    shift
    [ "${SITE_PREFLIGHT:-full}" != none ] || return 0
    mkdir -p "$reports" "$1"
    read -ra limits <<<"${SITE_PREFLIGHT_LIMITS:-}"
    srun --wait=60 --output="${reports//%/%%}/%N-node.json" \
        timeout 120 python -m pretok preflight "$@" "${limits[@]}" --json || true
    if [ "$stage" = train ] && [ "${SITE_PREFLIGHT:-full}" = full ]; then
        (SLURM_STDOUTMODE="${reports//%/%%}/%N-torch.json" on_each_node -m train.preflight) || true
    fi
    bad=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd,)
    if bad=$(python -m pretok preflight "$reports" --collect --nodes "$bad"); then return 0; fi
    [ -n "$bad" ] || exit 1
    say "failed nodes: $bad" >&2
    if [ -n "$chain" ]; then
        echo "$bad" >>"$chain/bad-nodes"
        for job in $(link_followers "$stage"); do # only a job that has not started can be changed
            if [ "$job" -gt "$SLURM_JOB_ID" ]; then
                scontrol update jobid="$job" excnodelist="$(sort -u "$chain/bad-nodes" | paste -sd,)"
            fi
        done
    fi
    exit 1
}
