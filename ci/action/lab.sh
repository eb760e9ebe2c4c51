#!/usr/bin/env bash
# The steps of a job that runs a command in a lab. The action (action.yml), the GitLab template (../gitlab/netacc-lab.yml) and the
# image (../image/Containerfile) have no other shell code of their own. Usage: lab.sh key|build|setup|run
#
# NETACC_LAB_FOLDER   programs and downloads, worth caching [~/.cache/netacc-lab-ci]
# NETACC_LAB_RDMA     rxe, siw or erdma [rxe]
# NETACC_LAB_HOSTS    1 or 2 [1]
# NETACC_LAB_TIMEOUT  seconds for the command [600]
# NETACC_LAB_WRITABLE a folder in which the command's writes are kept [none]
# NETACC_LAB_COMMAND  a line for sh
set -euo pipefail
source_folder="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
readonly source_folder
readonly FOLDER="${NETACC_LAB_FOLDER:-$HOME/.cache/netacc-lab-ci}"
readonly RDMA="${NETACC_LAB_RDMA:-rxe}"
readonly SOURCES=(Cargo.lock Cargo.toml backends ci/action ci/lab core models rust-toolchain.toml)

die() { printf 'netacc-lab: %s\n' "$*" >&2; exit 1; }

# Changes with all that goes into the programs.
key() {
    (cd "$source_folder" && find "${SOURCES[@]}" -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) |
        sha256sum | cut -c 1-16
}

step_key() { # the key and the folder of the job's cache; fails at once where no lab can be
    [ "$(uname -m)" = x86_64 ] || die "labs are for x86-64 machines, and this is $(uname -m)"
    # shellcheck source=/dev/null
    . /etc/os-release
    [ "$ID" = debian ] || die "labs are for Debian, and this is $PRETTY_NAME: run the job in the image debian:12"
    printf 'key=%s%s-%s-%s\nfolder=%s\n' "$ID" "${VERSION_ID:-}" "$RDMA" "$(key)" "$FOLDER"
}

step_build() { # netacc and netacc-erdma, unless the cache had them
    local place
    place="$FOLDER/programs/$(key)"
    [ ! -x "$place/netacc" ] || return 0
    "$source_folder/ci/run.sh" lab-tools
    rm -rf "$FOLDER/programs"
    mkdir -p "$place.new"
    cp "$source_folder/target/quick/netacc" "$source_folder/target/quick/netacc-erdma" "$place.new/"
    mv "$place.new" "$place"
}

step_setup() { # all that the lab needs: Debian packages, as root, and downloads
    use_programs
    netacc lab setup --rdma "$RDMA"
    # Later steps of the job may use `netacc lab` themselves.
    if [ -n "${GITHUB_PATH:-}" ]; then
        echo "$FOLDER/programs/$(key)" >>"$GITHUB_PATH"
        echo "NETACC_LAB_CACHE=$NETACC_LAB_CACHE" >>"$GITHUB_ENV"
    fi
}

step_run() { # the command; the exit status is its own
    use_programs
    local arguments=(--rdma "$RDMA" --hosts "${NETACC_LAB_HOSTS:-1}" --timeout "${NETACC_LAB_TIMEOUT:-600}")
    [ -z "${NETACC_LAB_WRITABLE:-}" ] || arguments+=(--rw "$NETACC_LAB_WRITABLE")
    # Not exported: inside, the lab's own variables have these names.
    local command="${NETACC_LAB_COMMAND:?the command to run in the lab}"
    unset NETACC_LAB_COMMAND NETACC_LAB_HOSTS
    exec netacc lab run "${arguments[@]}" -- sh -c "$command"
}

use_programs() {
    PATH="$FOLDER/programs/$(key):$PATH"
    export NETACC_LAB_CACHE="$FOLDER/cache"
}

case "${1:-}" in
    key | build | setup | run) "step_$1" ;;
    *) die "usage: lab.sh key|build|setup|run" ;;
esac
