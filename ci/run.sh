#!/usr/bin/env bash
# The jobs of continuous integration and of `make`. Usage: ci/run.sh <job>; "help" lists them.
#
# Every job first installs its needs, and nothing when all of them are there, so that any of them is the
# first command that works on a fresh Debian 12 machine. Nothing that runs already is stopped or changed:
# tests start their own servers on free ports.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly RUSTUP_VERSION=1.28.2
readonly RUSTUP_SHA256=20a06e644b0d9bd2fbdbfd52d42540bdde820ea7df86e92e533c073da0cdd43c
# For tools that only the compiler's nightly builds have: ThreadSanitizer, Miri. Of a date at which they work here.
readonly NIGHTLY=nightly-2026-05-20
# Not of the tests: `make notebooks` alone installs it.
readonly JUPYTERLAB=4.6.6
readonly CARGO_FUZZ_VERSION=0.13.2
readonly NO_STD_TARGET=x86_64-unknown-none
# netacc_run starts in half the time with musl.
readonly LAUNCHER_TARGET=x86_64-unknown-linux-musl
readonly RESULTS=results/local
# Subjects of later commits are checked.
readonly COMMITS_SINCE=d341f99

# The needs of each job, as "command=Debian package". A command that exists already, of any origin, is enough.
readonly NEEDS_RUST=(gcc=gcc 'g++=g++' /usr/include/stdio.h=libc6-dev curl=curl)
readonly NEEDS_PYTHON=(python3=python3)
readonly NEEDS_LINT=(shellcheck=shellcheck)
readonly NEEDS_REDIS=(redis-server=redis-server redis-benchmark=redis-tools)
readonly NEEDS_APPS=(
    "${NEEDS_REDIS[@]}"
    memcached=memcached memcslap=libmemcached-tools
    nginx=nginx wrk=wrk curl=curl
    '/usr/lib/postgresql/*/bin/initdb=postgresql' '/usr/lib/postgresql/*/bin/pgbench=postgresql'
    /usr/sbin/pgbouncer=pgbouncer iperf3=iperf3 node=nodejs /usr/sbin/mariadbd=mariadb-server mariadb-slap=mariadb-client
    gcc=gcc /usr/include/liburing.h=liburing-dev /usr/include/libaio.h=libaio-dev
    ip=iproute2 /usr/sbin/nft=nftables setpriv=util-linux prlimit=util-linux
    valgrind=valgrind strace=strace
    dnsmasq=dnsmasq-base dnsperf=dnsperf sockperf=sockperf openssl=openssl
    /usr/sbin/unbound=unbound nc.openbsd=netcat-openbsd nc.traditional=netcat-traditional
    # Programs without a shared C library, and others in Go.
    musl-gcc=musl-tools go=golang-go gdb=gdb
    /usr/sbin/nats-server=nats-server etcd=etcd-server caddy=caddy
    prometheus=prometheus prometheus-node-exporter=prometheus-node-exporter
)
# The lab itself installs the packages for booting (netacc lab setup); these are the programs that its tests run inside.
readonly NEEDS_LAB_TESTS=(
    "${NEEDS_APPS[@]}" ibv_devinfo=ibverbs-utils rping=rdmacm-utils ib_send_lat=perftest ss=iproute2 pgrep=procps
    ssh=openssh-client
    setpriv=util-linux prlimit=util-linux
)
readonly NEEDS_PACKAGES=(
    strip=binutils dpkg-deb=dpkg rpmbuild=rpm mmdebstrap=mmdebstrap unshare=util-linux ip=iproute2
    /usr/share/keyrings/debian-archive-keyring.gpg=debian-archive-keyring
)
# The layout of our own declarations of libibverbs and librdmacm is checked against the headers.
readonly NEEDS_HEADERS=(/usr/include/infiniband/verbs.h=libibverbs-dev /usr/include/rdma/rdma_cma.h=librdmacm-dev)
# Programs for Arm, and QEMU's user mode, which runs them.
readonly NEEDS_AARCH64=(
    aarch64-linux-gnu-gcc=gcc-aarch64-linux-gnu 'aarch64-linux-gnu-g++=g++-aarch64-linux-gnu'
    /usr/aarch64-linux-gnu/include/stdio.h=libc6-dev-arm64-cross qemu-aarch64=qemu-user
)
# Debian's configuration of ns-3 for CMake wants more; models/ns3 does without it.
readonly NEEDS_NS3=('g++=g++' make=make cmake=cmake /usr/include/ns3/simulator.h=libns3-dev)
# The command of libtool's package is libtoolize; libuv's build runs it.
readonly NEEDS_SUITES=(
    gcc=gcc make=make automake=automake libtoolize=libtool tclsh=tcl node=nodejs ip=iproute2 unshare=util-linux
    "${NEEDS_REDIS[@]}"
)

export PATH="$PATH:/usr/sbin:/sbin:$HOME/.cargo/bin"

say() { printf '==> %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# ---- installing -------------------------------------------------------------------------------------------

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else die "these Debian packages are missing and neither root nor sudo is there to install them: ${*: -1}"
    fi
}

apt_install() {
    command -v apt-get >/dev/null || die "missing, and there is no apt-get to install them: $*"
    # A fresh image has no package lists; a stale one may name versions that are gone.
    if ! compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null; then
        say "apt-get update (no package lists yet)"
        as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    fi
    say "installing Debian packages: $*"
    local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends)
    as_root "${install[@]}" "$@" || {
        say "again with fresh package lists"
        as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
        as_root "${install[@]}" "$@"
    }
}

need() {
    local pair missing=()
    for pair in "$@"; do
        # A path may be a pattern, which compgen tries; a name is looked up in PATH.
        case "${pair%=*}" in
            /*) compgen -G "${pair%=*}" >/dev/null || missing+=("${pair##*=}") ;;
            *) command -v "${pair%=*}" >/dev/null || missing+=("${pair##*=}") ;;
        esac
    done
    [ ${#missing[@]} = 0 ] || apt_install "${missing[@]}"
}

need_rust() {
    need "${NEEDS_RUST[@]}"
    if ! command -v rustup >/dev/null; then
        local triple installer
        triple="$(uname -m)-unknown-linux-gnu"
        [ "$triple" = x86_64-unknown-linux-gnu ] || die "install rustup by hand on $triple"
        need /etc/ssl/certs/ca-certificates.crt=ca-certificates
        say "installing rustup $RUSTUP_VERSION into ~/.cargo (PATH of your shell stays as it is)"
        installer="$(mktemp)"
        curl -fsSL -o "$installer" \
            "https://static.rust-lang.org/rustup/archive/$RUSTUP_VERSION/$triple/rustup-init"
        echo "$RUSTUP_SHA256  $installer" | sha256sum --check --quiet || die "rustup-init does not match its checksum"
        chmod +x "$installer"
        "$installer" -y -q --no-modify-path --profile minimal --default-toolchain none
        rm -f "$installer"
    fi
    # rust-toolchain.toml pins the version, its components and its targets.
    local wanted targets
    wanted="$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)"
    targets="$(rustup target list --installed 2>/dev/null || true)"
    if ! rustup toolchain list | grep -q "^$wanted-" || ! grep -qx "$NO_STD_TARGET" <<<"$targets" ||
        ! grep -qx "$LAUNCHER_TARGET" <<<"$targets"; then
        say "installing Rust $wanted, the version of rust-toolchain.toml"
        rustup toolchain install "$wanted" --profile minimal --component rustfmt --component clippy \
            --target "$NO_STD_TARGET" --target "$LAUNCHER_TARGET" --no-self-update
    fi
}

need_nightly() {
    need_rust
    [ "$(rustup component list --toolchain "$NIGHTLY" 2>/dev/null | grep -cE '^(rust-src|miri-.*) \(installed\)')" = 2 ] && return
    say "installing Rust $NIGHTLY with the sources of the standard library, and Miri"
    rustup toolchain install "$NIGHTLY" --profile minimal --component rust-src --component miri --no-self-update
}

need_python() {
    need "${NEEDS_PYTHON[@]}"
    local stamp=.venv/requirements.sha256 wanted
    wanted="$(sha256sum tests/requirements.txt)"
    [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || return 0
    # `python3 -m venv` without ensurepip fails halfway, so ask first.
    python3 -c 'import ensurepip, venv' 2>/dev/null || apt_install python3-venv
    say "Python environment .venv from tests/requirements.txt"
    [ -x .venv/bin/python ] || python3 -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -r tests/requirements.txt
    echo "$wanted" >"$stamp"
}

# The Python package netacc_lab, into .venv. Cargo builds changed files only, so this is quick when nothing has.
need_lab() {
    need_rust
    need_python
    VIRTUAL_ENV="$PWD/.venv" .venv/bin/maturin develop --quiet --release --locked --manifest-path core/python/Cargo.toml
}

# The Go modules of the tests: Porcupine, which checks histories of operations.
need_modules() { (cd tests/apps/programs/linearizable && GOFLAGS=-mod=readonly go mod download); }

# The programs under test: those of `build`, or the folder in $NETACC_BIN_DIR.
need_binaries() { [ -n "${NETACC_BIN_DIR:-}" ] || job_build; }

# ---- jobs -------------------------------------------------------------------------------------------------

job_setup() { # install the needs of every other job
    need_rust
    need_python
    need "${NEEDS_LINT[@]}" "${NEEDS_APPS[@]}" "${NEEDS_NS3[@]}"
    need_modules
    say "everything that the jobs need is installed"
}

# Renamed into place: running programs keep their mapped file.
place() { # FROM TO
    cp "$1" "$2.new"
    mv "$2.new" "$2"
}

# At fixed addresses: a static program that may lie anywhere relocates itself, and each page that it changes is a copy.
build_launcher() { # TARGET
    cargo rustc --release --locked -p netacc-launcher --bin netacc_run --target "$1" -- -C relocation-model=static
}

job_build() { # the release binaries and the library
    need_rust
    # The library of the packages differs in the last step of its build only, which is the longest one.
    cargo build --release --locked --workspace --exclude netacc-portable
    build_launcher "$LAUNCHER_TARGET"
    place "target/$LAUNCHER_TARGET/release/netacc_run" target/release/netacc_run
    # Cargo cannot put a dash into a library's name.
    place target/release/libnetacc_preload.so target/release/libnetacc-preload.so
    local file
    for file in netacc netacc_run netacc_ss netacc-erdma netacc-exec netacc-threads netacc-loader libnetacc-preload.so; do
        [ -e "target/release/$file" ] || die "the build left no target/release/$file"
    done
}

job_lab-tools() { # netacc and netacc-erdma, all that `netacc lab` needs, into target/quick: ready in a minute or two
    need_rust
    cargo build --profile quick --locked -p netacc-cli -p netacc-erdma
}

job_lint() { # formats and lints of Rust, Python, shell and commit subjects; the structure of crates
    need_rust
    need_python
    need "${NEEDS_LINT[@]}"
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --locked -- -D warnings
    # Code that only a rare job compiles.
    RUSTFLAGS="--cfg loom" cargo check --quiet --locked --target-dir target/loom -p netacc-shm -p netacc-preload --lib
    need_lab
    .venv/bin/ruff check .
    .venv/bin/ruff format --check .
    .venv/bin/mypy
    .venv/bin/python ci/structure.py
    lint_commits
    shellcheck ci/*.sh ci/action/*.sh ci/examples/*/*.sh paper/*.sh .ci/run
}

# An archive of the sources, or a shallow clone, has no history to check.
lint_commits() {
    if git rev-parse --quiet --verify "$COMMITS_SINCE^{commit}" >/dev/null 2>&1; then
        .venv/bin/gitlint --commits "$COMMITS_SINCE..HEAD"
    fi
}

job_unit() { # Rust tests of all crates; the harness and the model have jobs of their own
    need_rust
    need "${NEEDS_HEADERS[@]}"
    cargo test --workspace --locked --no-fail-fast --exclude netacc-harness
}

# What QEMU 7.2 has not got: questions about sockets of other processes (NETLINK_SOCK_DIAG), robust lists, by which a process
# learns of a death at once, TCP_INFO, seccomp filters, and process_vm_readv.
readonly WITHOUT_QEMU=(
    the_kernel_reports_who_has_the_other_end
    a_dead_process_is_posted_nothing a_socket_is_held_alone_once_the_others
    a_local_shutdown_is_not_the_peers_end a_reset_differs_from_one_after_the_peers_end
    the_kernel_reports_the_progress_of_a_connection the_kernel_counts_bytes_and_names_sockets
    generated_filters_answer_as_the_kernel_does without_a_filter_everything_is_permitted
    memory_that_is_not_there_is_not_read
)

# The loader of static programs is for x86-64 alone.
job_aarch64() { # everything but that loader builds for aarch64; tests of core, shm and driver, and a program, by QEMU's user mode
    need_rust
    need_python
    need "${NEEDS_AARCH64[@]}"
    local triple=aarch64-unknown-linux-gnu packages=(proto device driver socket datagram descriptors config trace shm) skips=() name
    for name in "${WITHOUT_QEMU[@]}"; do skips+=(--skip "$name"); done
    rustup target add "$triple"
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
    export CXX_aarch64_unknown_linux_gnu=aarch64-linux-gnu-g++ NETACC_TEST_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$NETACC_TEST_RUNNER"
    cargo test --locked --no-fail-fast --target "$triple" "${packages[@]/#/-pnetacc-}" -- "${skips[@]}"
    cargo test --locked --no-fail-fast --target "$triple" -p netacc-preload --lib -- "${skips[@]}"
    cargo build --locked --target "$triple" -p netacc-preload
    .venv/bin/python -m pytest tests/aarch64 "$@"
    cargo check --locked --target "$triple" --workspace --exclude netacc-loader
}

job_no-std() { # core/proto builds for a target without an operating system
    need_rust
    cargo build --locked -p netacc-proto --no-default-features --target "$NO_STD_TARGET"
}

job_model() { # exhaustive model check of the switching protocol
    need_rust
    cargo test --locked --release -p netacc-proto --test model
}

job_loom() { # models of the lock-free parts: every interleaving, and every value a load may return
    need_rust
    # A folder of its own: everything is built differently.
    RUSTFLAGS="--cfg loom" cargo test --locked --target-dir target/loom -p netacc-shm -p netacc-preload --lib -- models
}

job_go-versions() { # programs of Go 1.18 to 1.26, linked in each way (compilers come from the Go module proxy)
    need_python
    need "${NEEDS_APPS[@]}"
    need_binaries
    .venv/bin/python -m pytest --reruns 1 --rerun-show-tracebacks -rR tests/apps/test_go_versions.py "$@"
}

job_threads() { # a program of many threads, natively and accelerated, many times over
    local run
    for run in {1..20}; do
        say "run $run of 20"
        job_apps tests/apps/test_threads.py
    done
}

job_tsan() { # unit tests of memory that threads share, under ThreadSanitizer
    need_nightly
    # The standard library is built too: with locks that TSan does not see it would report races that are none.
    RUSTFLAGS="-Zsanitizer=thread" TSAN_OPTIONS="halt_on_error=1 exitcode=66 history_size=4" \
        cargo +"$NIGHTLY" test --locked -Zbuild-std --target x86_64-unknown-linux-gnu --target-dir target/tsan \
        -p netacc-device -p netacc-driver -p netacc-socket -p netacc-shm -p netacc-preload --lib --tests
}

# Without the tests that Miri cannot run (memory shared through files, sockets, C) or that would take hours.
job_miri() { # the models of the lock-free parts and the driver on loopback devices, with every use of memory checked
    need_nightly
    # The kernel's entropy and clock are asked for. Endpoints that refer to each other are not taken apart at the end.
    export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-ignore-leaks"
    local miri=(cargo "+$NIGHTLY" miri test --locked --target-dir target/miri)
    "${miri[@]}" -p netacc-shm --lib -- models
    "${miri[@]}" -p netacc-preload --lib -- models notices
    "${miri[@]}" -p netacc-driver --test links
}

job_sim() { # whole conversations under the seeded scheduler, with faults
    need_rust
    cargo test --locked --release -p netacc-harness
}

# Those of a day are its own, so that nights add up.
job_sim-long() { # many more conversations, also crowded ones, with streams and with datagrams, on each preset (SEEDS=0..100000, by default 10,000 of the day; PRESETS="rxe shm")
    need_rust
    cargo build --release --locked -p netacc-harness
    local from preset kind failed=()
    # shellcheck disable=SC2017 # whole days
    from=$(($(date +%s) / 86400 * 10000))
    for preset in ${PRESETS:-rxe erdma shm silent}; do
        for kind in "" --crowded --crowded=automatic --datagrams "--crowded --datagrams" "--crowded=automatic --datagrams"; do
            # Processes of one host have their datagrams' rings in memory that both map, which the harness has not.
            [[ "$preset $kind" != shm*--datagrams ]] || continue
            say "$preset $kind"
            # shellcheck disable=SC2086 # several words
            target/release/netacc-harness --preset "$preset" $kind --seeds "${SEEDS:-$from..$((from + 10000))}" --keep-going ||
                failed+=("$preset $kind")
        done
    done
    [ ${#failed[@]} = 0 ] || die "failed: ${failed[*]}"
}

# The ns-3 module and its executables. Cargo and make build changed files only.
need_ns3() {
    need_rust
    need "${NEEDS_NS3[@]}"
    cmake -S models/ns3 -B target/ns3 -DCMAKE_BUILD_TYPE=Release >/dev/null
    cmake --build target/ns3 --parallel "$(nproc)"
}

job_ns3() { # the ns-3 module: closed forms, the same traces as the plain network, PFC, shared buffers, ECMP
    need_ns3
    local suite report
    for suite in rnic rnic-tcp; do
        report="$(target/ns3/rnic-test --suite="$suite" --verbose)" || { printf '%s\n' "$report"; die "$suite failed"; }
        printf '%s\n' "$report"
        # The runner accepts a suite that it does not find.
        grep -q "^PASS $suite " <<<"$report" || die "$suite did not run"
    done
}

job_sim-tools() { # what `netacc sim` needs: the Python environment .venv, and the simulator program
    need_lab
    need_ns3
    say "ready: netacc sim list"
}

job_studies() { # scenarios, their tools, and simulation against closed forms and published results (arguments: for pytest)
    need_lab
    need_ns3
    need valgrind=valgrind
    need_binaries
    # The blocks of a tutorial need each other, and those of one file share simulations.
    .venv/bin/python -m pytest -n 2 --dist loadfile tests/sim tests/analysis docs/tutorials/simulation.md "$@"
}

# Outside of the tree, with nothing of it in the environment: only a program that it has built, and the simulator.
job_wheel() { # the wheel of netacc_lab in an empty environment elsewhere: its scenarios, a simulation, a report
    need_rust
    need_python
    [ -n "${NETACC_SIMULATOR:-}" ] || need_ns3
    need_binaries
    local folder programs simulator
    folder="$(mktemp -d)"
    # shellcheck disable=SC2064 # of this folder
    trap "rm -rf '$folder'" EXIT
    programs="$(realpath "${NETACC_BIN_DIR:-target/release}")"
    simulator="$(realpath "${NETACC_SIMULATOR:-target/ns3/netacc-simulator}")"
    say "building the wheel"
    PATH="$PWD/.venv/bin:$PATH" .venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps \
        --no-build-isolation -w "$folder" core/python
    say "installing it"
    .venv/bin/uv venv --quiet --python .venv/bin/python "$folder/venv"
    .venv/bin/uv pip install --quiet --python "$folder/venv/bin/python" -c tests/requirements.txt \
        "$(compgen -G "$folder/netacc_lab-*.whl")[sim]"
    local alone=(env -i -C "$folder" PATH=/usr/bin:/bin HOME="$folder" NETACC_RUNS="$folder/runs"
        NETACC_PYTHON="$folder/venv/bin/python" NETACC_SIMULATOR="$simulator")
    "${alone[@]}" venv/bin/python -c 'import netacc_lab; print("netacc_lab", netacc_lab.__version__, netacc_lab.__file__)' |
        grep -F "$folder"
    [ "$("${alone[@]}" "$programs/netacc" sim list | wc -l)" = "$(find sim/scenarios -name '*.toml' | wc -l)" ] ||
        die "the wheel has not got all scenarios"
    "${alone[@]}" "$programs/netacc" sim run deployment-set --seeds 1
    "${alone[@]}" "$programs/netacc" report "$folder/runs"
}

# Only the last step of the library's build is its own; everything else is shared with `build`.
job_packages() { # .deb, .rpm and .tar.gz in target/packages, tried in root file systems of Debian (NETACC_SUITES="bullseye bookworm trixie"; arguments: for pytest)
    need_rust
    need_python
    need "${NEEDS_PACKAGES[@]}"
    # With all others: alone it would have other features, and the two builds would replace each other.
    cargo build --release --locked --workspace
    job_build
    rm -rf target/packages
    .venv/bin/python -m ci.packages target/release target/packages
    .venv/bin/python -m tests.packages.roots
    .venv/bin/python -m pytest tests/packages/test_packages.py "$@"
}

job_packages-aarch64() { # the same for aarch64, cross-built; tried by QEMU's user mode with the files of Debian 11
    need_rust
    need_python
    need "${NEEDS_PACKAGES[@]}" "${NEEDS_AARCH64[@]}"
    local triple=aarch64-unknown-linux-gnu launcher=aarch64-unknown-linux-musl
    rustup target add "$triple" "$launcher"
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
    # Rust brings all that a static program with musl needs.
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
    cargo build --release --locked --target "$triple" -p netacc-cli -p netacc-portable
    build_launcher "$launcher"
    place "target/$launcher/release/netacc_run" "target/$triple/release/netacc_run"
    rm -f target/packages/*arm64* target/packages/*aarch64*
    .venv/bin/python -m ci.packages --machine aarch64 "target/$triple/release" target/packages
    .venv/bin/python -m pytest tests/packages/test_aarch64.py "$@"
}

job_notebooks() { # the notebooks in JupyterLab, with all that they need (arguments: of jupyter lab)
    need_lab
    need_ns3
    if ! .venv/bin/python -c 'import jupyterlab' 2>/dev/null; then
        say "JupyterLab $JUPYTERLAB into .venv"
        .venv/bin/python -m pip install --quiet --disable-pip-version-check -c tests/requirements.txt "jupyterlab==$JUPYTERLAB"
    fi
    .venv/bin/python -m jupyterlab notebooks "$@"
}

job_validate() { # tables of simulation against closed forms, published results, this machine and SoftRoCE (arguments: only these)
    need "${NEEDS_REDIS[@]}" memcached=memcached
    need_lab
    need_ns3
    need_binaries
    "${NETACC_BIN_DIR:-target/release}/netacc" lab setup
    .venv/bin/python -m tests.sim.validation "$@"
}

job_calibrate-rxe() { # profiles of SoftRoCE between two micro-VMs for netacc sim, in results/local/rxe (arguments: another folder)
    need_lab
    need_binaries
    "${NETACC_BIN_DIR:-target/release}/netacc" lab setup
    .venv/bin/python -m tests.sim.rxe_here "${1:-$RESULTS/rxe}"
}

job_spec() { # every clause of SPEC.md has code and a test
    need_python
    .venv/bin/python ci/spec.py
}

job_docs() { # the documentation as a site in target/docs: reference from the code, links checked, tutorials and notebooks run
    need_lab
    need "${NEEDS_REDIS[@]}"
    need_binaries
    # Tutorials and notebooks make simulations of their own.
    [ -n "${NETACC_SIMULATOR:-}" ] || need_ns3
    .venv/bin/python -m pytest docs
    # All pages are read again (-E): what notebooks and tutorials load from results/ is not among the files that Sphinx watches.
    NETACC_RUNS="$PWD/target/docs-runs" .venv/bin/python -m sphinx -q -W -n -E --keep-going -d target/docs-doctrees docs target/docs
    say "target/docs/index.html"
}

job_paper() { # the paper, target/paper/netacc.pdf, all of its numbers from records (arguments: of paper.build, as --png)
    need_python
    .venv/bin/python -m paper.build "$@"
    # Arguments are for a look at the paper; the tests build it several times.
    [ $# -gt 0 ] || .venv/bin/python -m pytest -q tests/paper
}

job_paper-records() { # the records of the paper again, those that a laptop can make (arguments: only these; paper/README.md)
    need_lab
    need_ns3
    need_binaries
    need "${NEEDS_REDIS[@]}"
    paper/record.sh "$@"
}

# The executor of programs without a shared C library.
need_static_executor() { cargo build --release --locked -p netacc-executor --target "$LAUNCHER_TARGET"; }

job_props() { # generated programs on kernel TCP, shared memory, the core alone and the core in ns-3 (arguments: for pytest)
    need_lab
    need_binaries
    need_ns3
    need_static_executor
    .venv/bin/python -m pytest tests/properties "$@"
}

job_props-static() { # many more of them by an executor that is linked statically with musl (arguments: for pytest)
    need_lab
    need_binaries
    need_static_executor
    NETACC_EXAMPLES="${NETACC_EXAMPLES:-15000}" .venv/bin/python -m pytest tests/properties/test_static.py "$@"
}

job_props-long() { # many more of them (EXECUTOR=shm|harness|ns3 SEEDS=0..100000 PROFILE=balanced SECONDS_MOST=3600; --resume)
    need_lab
    need_binaries
    [ "${EXECUTOR:-shm}" != ns3 ] || need_ns3
    mkdir -p "$RESULTS"
    .venv/bin/python -m netacc_lab --binaries "${NETACC_BIN_DIR:-target/release}" --log "$RESULTS/props.log" \
        --executor "${EXECUTOR:-shm}" run \
        --seeds "${SEEDS:-0..100000}" --profile "${PROFILE:-balanced}" --seconds "${SECONDS_MOST:-3600}" \
        --known tests/properties/open.json --json "$RESULTS/props.json" --revision "$(git rev-parse --short HEAD)" \
        --features --save "$RESULTS/shrunk" "$@"
}

# cargo-fuzz wants a nightly compiler for the instrumentation.
need_fuzz() {
    need_nightly
    if [ "$(cargo fuzz --version 2>/dev/null)" != "cargo-fuzz $CARGO_FUZZ_VERSION" ]; then
        say "installing cargo-fuzz $CARGO_FUZZ_VERSION into ~/.cargo"
        cargo install --quiet --locked --force --version "$CARGO_FUZZ_VERSION" cargo-fuzz
    fi
}

# The folder with what the target `library` runs: a library whose code counts where it goes (tests/fuzz/coverage.c).
readonly COUNTED=target/counted/bin
need_counted() {
    need "${NEEDS_RUST[@]}"
    local target="$PWD/target/counted" triple=x86_64-unknown-linux-gnu from="${NETACC_BIN_DIR:-target/release}"
    local flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 -Cllvm-args=-sanitizer-coverage-trace-pc-guard"
    mkdir -p "$COUNTED"
    gcc -O2 -fPIC -Wall -Wextra -Werror -c tests/fuzz/coverage.c -o "$target/coverage.o"
    # With a target named, programs that only build this one are not counted.
    RUSTFLAGS="$flags -Clink-arg=$target/coverage.o" CARGO_PROFILE_RELEASE_LTO=off \
        cargo build --quiet --release --locked --target "$triple" --target-dir "$target" -p netacc-preload --lib
    cp "$target/$triple/release/libnetacc_preload.so" "$COUNTED/libnetacc-preload.so"
    cp "$from/netacc_run" "$from/netacc-exec" "$COUNTED"
}

# The core needs no AddressSanitizer: it has no unsafe code but that of the regions, which Miri checks.
# Long inputs from the beginning: short ones are programs without operations.
fuzz_target() { # TARGET RUNS SECONDS
    local corpus="$RESULTS/fuzz/$1" artifacts="$RESULTS/fuzz/$1-failures/"
    mkdir -p "$corpus" "$artifacts"
    say "fuzz target $1: at most $2 inputs, at most $3 s"
    [ "$1" != library ] || need_counted
    NETACC_EXEC="$PWD/${NETACC_BIN_DIR:-target/release}/netacc-exec" NETACC_COUNTED="$PWD/$COUNTED" \
        cargo "+$NIGHTLY" fuzz run --fuzz-dir tests/fuzz/targets --target-dir target/fuzz --sanitizer none -O -a "$1" "$corpus" -- \
        -runs="$2" -max_total_time="$3" -len_control=0 -max_len=1408 -artifact_prefix="$artifacts" -print_final_stats=1
}

# Target, most inputs, most seconds.
readonly NIGHTLY_FUZZING="encodings 100000000 7200
datagrams 100000000 3600
code 100000000 1800
stranger 100000000 3600
programs 100000000 3600
library 100000000 3600"

job_fuzz() { # coverage-guided fuzzing: encodings, code of static programs, datagrams, a peer that follows no rules, programs in simulation and on the library (SECONDS_EACH=600; arguments: only these targets)
    need_fuzz
    need_binaries
    [ $# != 0 ] || set -- encodings code datagrams stranger programs library
    local target
    for target in "$@"; do
        fuzz_target "$target" "${RUNS:-100000000}" "${SECONDS_EACH:-600}"
    done
}

# Each part runs whatever became of those before it.
job_nightly() { # packages, aarch64, suites of others, programs of large packages, hours of fuzzing and seeds, and 10^6 programs on shared memory (arguments: for the runner of programs)
    need_fuzz
    need_lab
    need_binaries
    local part target inputs seconds failed=()
    for part in packages aarch64 go-versions suites go-suites ${LIBC_TEST:+libc-test} props-static apps-long sim-long; do
        "$BASH" ci/run.sh "$part" || failed+=("$part")
    done
    while read -r target inputs seconds; do
        fuzz_target "$target" "$inputs" "$seconds" </dev/null || failed+=("fuzz $target")
    done <<<"$NIGHTLY_FUZZING"
    say "the programs that the fuzzer kept of those in simulation, on shared memory"
    .venv/bin/python -m netacc_lab --binaries "${NETACC_BIN_DIR:-target/release}" --log "$RESULTS/corpus.log" \
        corpus --known tests/properties/open.json --json "$RESULTS/corpus.json" --features "$RESULTS/fuzz/programs" ||
        failed+=(corpus)
    # A run that has not come to the end goes on in the next one. Remove the file to begin again.
    SEEDS="${SEEDS:-0..1000000}" PROFILE="${PROFILE:-fast}" SECONDS_MOST="${SECONDS_MOST:-36000}" "$BASH" ci/run.sh props-long \
        --json "$RESULTS/nightly.json" --resume "$@" || failed+=(props-long)
    [ ${#failed[@]} = 0 ] || die "failed: ${failed[*]}"
}

job_mutants() { # deliberate faults of library and device, which the programs must notice (arguments: only these)
    need_lab
    need_binaries
    .venv/bin/python -m tests.properties.mutants "$@"
}

job_apps-long() { # programs whose packages are large (arguments: for pytest)
    need_python
    need "${NEEDS_APPS[@]}" ffmpeg=ffmpeg
    need_binaries
    .venv/bin/python -m pytest -m long tests/apps --ignore tests/apps/test_go_versions.py "$@"
}

job_apps() { # pytest: real programs, natively and accelerated (arguments replace the folders)
    need_python
    need "${NEEDS_APPS[@]}"
    need_modules
    need_binaries
    if [ $# != 0 ]; then
        .venv/bin/python -m pytest "$@"
        return
    fi
    local again=(--reruns 1 --rerun-show-tracebacks -rR)
    # Other work on the machine may take the time that is counted here, too.
    .venv/bin/python -m pytest -m quiet "${again[@]}" tests/apps
    # Most tests wait more than they compute. Those of one file share what they build. On a machine that is so busy a
    # program can end before its connections are promoted, so a test that fails gets a second chance. The summary lists it.
    .venv/bin/python -m pytest -n 3 --dist loadfile -m "not quiet and not long" "${again[@]}" tests/apps tests/ci
}

job_lab() { # RDMA devices in micro-VMs: SoftRoCE, soft-iWARP and emulated eRDMA, one host and two (arguments: for pytest)
    need /usr/bin/dpkg=dpkg
    unpack_sshd
    # Those of the two devices' labs at the same time: half of the time a machine waits for the other. Four emulated
    # machines miss deadlines of their kernels or their peers now and then, so a test that fails gets a second chance. The
    # summary lists it with its error. A test that fails twice has failed.
    run_lab_tests -n 2 --dist loadgroup --reruns 1 --rerun-show-tracebacks -rR --durations 15 -m "not long" "$@"
    # Arguments choose among the tests; without any the tutorial is run, too.
    [ $# -gt 0 ] || NETACC_TUTORIALS=lab .venv/bin/python -m pytest docs/tutorials/ci.md --reruns 1
}

job_lab-long() { # rare events on those devices; takes long (NETACC_LAB_PROGRAMS=300; arguments: for pytest)
    need /usr/bin/dpkg=dpkg
    # rdma-core's own tests are part of its documentation there.
    need /usr/share/doc/rdma-core/tests/run_tests.py=python3-pyverbs
    unpack_sshd
    run_lab_tests -m long "$@"
}

run_lab_tests() {
    need_lab
    need "${NEEDS_LAB_TESTS[@]}" "${NEEDS_HEADERS[@]}"
    # Limits do not bind root, so some tests run programs as the user nobody: inside, but from this very folder.
    as_root setpriv --reuid=65534 --regid=65534 --clear-groups test -r "$PWD/ci/run.sh" ||
        die "other users cannot reach $PWD, as some tests need: move it, or give them x on the folders above it"
    need_binaries
    cargo build --locked -p netacc-verbs --examples
    say "netacc lab setup"
    local device
    for device in siw erdma; do
        "${NETACC_BIN_DIR:-target/release}/netacc" lab setup --rdma "$device"
    done
    local argument where=(tests/lab)
    for argument; do
        [ ! -e "${argument%%::*}" ] || where=()
    done
    .venv/bin/python -m pytest "${where[@]}" "$@"
}

# A server for ssh that runs in the lab's hosts only: unpacked, as installing it would start it here.
unpack_sshd() {
    local folder=target/lab
    [ ! -x "$folder/sshd/usr/sbin/sshd" ] || return 0
    say "unpacking openssh-server into $folder/sshd"
    mkdir -p "$folder"
    (
        cd "$folder"
        apt-get download -qq openssh-server libwrap0
        for package in openssh-server_*.deb libwrap0_*.deb; do dpkg -x "$package" sshd; done
        rm -f ./*.deb
    )
}

# An interpreter with its own test suite: python3, or else Debian's with the package that has it.
python_with_tests() {
    local python version
    for python in python3 /usr/bin/python3; do
        if "$python" -c 'import test.test_socket, test.test_ssl' 2>/dev/null; then
            echo "$python"
            return
        fi
    done
    version="$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
    apt_install "libpython$version-testsuite" >&2
    echo /usr/bin/python3
}

# Tests that are in no binary package are built from the sources of Debian's. The list of sources is our own and is kept
# beside the build, so that the machine's configuration stays as it is.
# built_from_source FOLDER PACKAGE RUNNER COMMAND...: builds with the commands, unless that is done; prints the runner's path
built_from_source() {
    local folder="$PWD/target/suites/$1" package="$2" runner="$3" codename apt command
    shift 3
    if [ ! -x "$folder/tree/$runner" ]; then
        need "${NEEDS_SUITES[@]}" >&2
        say "building the tests of $package from Debian's sources" >&2
        rm -rf "$folder"
        mkdir -p "$folder/lists/partial" "$folder/tree"
        codename="$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)"
        echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
            "http://deb.debian.org/debian $codename main" >"$folder/sources.list"
        apt=(apt-get -qq -o "Dir::Etc::sourcelist=$folder/sources.list" -o Dir::Etc::sourceparts=/dev/null
            -o "Dir::State::lists=$folder/lists")
        (
            cd "$folder"
            as_root "${apt[@]}" update
            as_root "${apt[@]}" source --download-only "$package"
            tar -xf "$package"_*.orig.tar.* -C tree --strip-components=1
            cd tree
            for command in "$@"; do $command || exit; done
        ) >"$folder/build.log" 2>&1 || die "the tests of $package cannot be built: $folder/build.log"
    fi
    echo "$folder/tree/$runner"
}

libuv_tests() {
    built_from_source libuv libuv1 test/run-tests \
        "sh autogen.sh" "./configure --disable-shared" "make -j$(nproc) check TESTS="
}

libevent_tests() {
    built_from_source libevent libevent test/regress \
        "./configure --disable-shared --disable-openssl" "make -j$(nproc)"
}

# Of the binaries that are installed: they are of the sources' version.
redis_tests() {
    local command links=()
    for command in redis-server redis-cli redis-benchmark redis-check-aof; do
        links+=("ln -s $(command -v "$command") src/$command")
    done
    built_from_source redis redis runtest "${links[@]}"
}

# By the node that is installed, of any version: the same one natively and accelerated.
node_tests() { built_from_source node nodejs test/parallel; }

job_suites() { # test suites of CPython, libuv, libevent, Node and Redis, natively and under netacc_run (arguments: see tests/suites)
    need_python
    [ -n "${NETACC_BIN_DIR:-}" ] || job_build
    local python libuv libevent node redis
    need "${NEEDS_SUITES[@]}"
    python="$(python_with_tests)"
    libuv="$(libuv_tests)"
    libevent="$(libevent_tests)"
    node="$(node_tests)"
    redis="$(redis_tests)"
    .venv/bin/python -m tests.suites --python "$python" --libuv "$libuv" --libevent "$libevent" --node "$node" \
        --redis "$redis" "$@"
}

job_go-suites() { # Go's own tests of net and net/http, natively and under netacc_run (arguments: see tests/suites)
    need_python
    need gcc=gcc go=golang-go
    need_binaries
    [ $# != 0 ] || set -- go-net go-net-http go-cgo-net go-cgo-net-http
    .venv/bin/python -m tests.suites --go "$@"
}

# No package registry has these sources.
job_libc-test() { # tests of musl's authors, static programs, natively and under netacc_run (LIBC_TEST=the folder of libc-test's sources; arguments: see tests/suites)
    [ -d "${LIBC_TEST:-}/src/functional" ] || die "LIBC_TEST is not the folder of libc-test's sources: git clone git://repo.or.cz/libc-test"
    need_python
    need gcc=gcc musl-gcc=musl-tools
    need_binaries
    .venv/bin/python -m tests.suites --libc-test "$LIBC_TEST" libc-test "$@"
}

job_demo() { # real Redis over kernel TCP and over the link, side by side: two minutes on a fresh machine
    need_rust
    need "${NEEDS_REDIS[@]}"
    say "building quickly: without the link-time optimisation of 'make build'"
    cargo build --profile quick --locked -p netacc-cli -p netacc-launcher -p netacc-preload
    place target/quick/libnetacc_preload.so target/quick/libnetacc-preload.so
    mkdir -p "$RESULTS"
    say "netacc bench redis: redis-server and redis-benchmark, unmodified, 100 clients, SET of 512 bytes"
    target/quick/netacc bench redis --clients 100 --size 512 --threads 1 --pairs 3 --seconds 1 \
        --json "$RESULTS/demo.json" --plot "$RESULTS/demo.svg"
}

job_recording() { # docs/demo.svg, the picture of `make demo` in README.md; on an idle machine
    need_python
    "$BASH" ci/run.sh demo
    .venv/bin/python -m ci.recording docs/demo.svg make demo
}

job_bench-ns3() { # simulated packets a second: plain ns-3's UDP, the NICs' messages, the core's bytes (arguments: rnic-speed --help)
    need_ns3
    mkdir -p "$RESULTS"
    target/ns3/rnic-speed "$@" | tee "$RESULTS/bench-ns3.json"
}

job_scale-ns3() { # up to 100,000 connections of 1024 simulated hosts: speed and memory; 10 GiB (arguments: rnic-conversations --help)
    need_ns3
    mkdir -p "$RESULTS"
    local round hosts
    : >"$RESULTS/scale-ns3.json"
    for round in 1 2 3; do
        for hosts in 16 64 256 1024; do
            say "round $round: $hosts hosts, $((98 * hosts)) connections"
            target/ns3/rnic-conversations --mesh=1 --hosts="$hosts" --connections=$((98 * hosts)) --ring=16384 --count=10 "$@" \
                | tee -a "$RESULTS/scale-ns3.json"
        done
    done
}

job_compare-hpcc() { # packets a second, memory and completion times beside the HPCC authors' simulator (arguments: its built tree; --help)
    need_python
    need_ns3
    .venv/bin/python -m tests.sim.hpcc "$@"
}

job_bench() { # all four benchmarks
    need "${NEEDS_REDIS[@]}"
    job_build
    mkdir -p "$RESULTS"
    local load
    for load in redis echo stream connect; do
        say "netacc bench $load"
        target/release/netacc bench "$load" --json "$RESULTS/bench-$load.json" --plot "$RESULTS/bench-$load.svg"
    done
}

# The programs of another commit are built by its own script, and kept. All commits share one target folder, so only the
# first one builds the crates of others.
programs_of() { # COMMIT: prints the folder
    local folder="$PWD/target/watch/$1" tree="$PWD/target/watch/tree-$1" file
    if [ ! -d "$folder" ]; then
        say "building ${1:0:12} into $folder" >&2
        rm -rf "$tree" "$folder.new"
        mkdir -p "$tree" "$folder.new" "$PWD/target/watch/shared"
        git archive "$1" | tar -x -C "$tree" || die "${1:0:12} cannot be unpacked"
        ln -s "$PWD/target/watch/shared" "$tree/target"
        (cd "$tree" && "$BASH" ci/run.sh build) >&2 || die "${1:0:12} cannot be built"
        for file in netacc netacc_run netacc_ss libnetacc-preload.so; do
            cp "$tree/target/release/$file" "$folder.new/" || die "${1:0:12} cannot be kept"
        done
        rm -rf "$tree"
        mv "$folder.new" "$folder"
    fi
    echo "$folder"
}

job_watch() { # what has changed since a commit: benchmarks in turns, instructions and system calls counted (BASE; then --rounds, --only, --help)
    need_rust
    need_lab
    need "${NEEDS_APPS[@]}"
    local base programs
    base="$(git rev-parse --verify --quiet "${1:-}^{commit}")" || die "usage: ci/run.sh watch BASE; no commit '${1:-}'"
    shift
    programs="$(programs_of "$base")"
    need_binaries
    .venv/bin/python -m ci.watch "$programs" "${NETACC_BIN_DIR:-target/release}" "$@"
}

# ---- everything, with timings -----------------------------------------------------------------------------

# Cheap steps that find most come first. The applications come last, so their closing lines end the output.
readonly ALL_STEPS=(setup build lint spec paper unit no-std model docs sim ns3 studies wheel props lab apps)

# The last lines of a test runner: `cargo test` prints them once a crate, pytest once.
closing_lines() {
    awk '/^test result: / { crates++; passed += $4; failed += $6; ignored += $8 }
         END { if (crates) printf "test result: %s. %d passed; %d failed; %d ignored; %d runs\n",
                                  failed ? "FAILED" : "ok", passed, failed, ignored, crates }' "$1"
    grep -E '^=+ .*(passed|failed|error|no tests ran).* in [0-9.]+s.* =+$' "$1" | tail -n 1 || true
}

# Without the network, real programs, simulations and the lab: the checks that most changes break first.
job_check() { # the quick check before each commit: formats, clippy, structure, unit tests, model, a few calls
    need_rust
    need_python
    job_lint
    job_spec
    cargo test --locked --lib --bins -p netacc-proto -p netacc-driver -p netacc-preload -p netacc-shm -p netacc-config
    job_build
    .venv/bin/python -m pytest -q -n 2 tests/ci tests/apps/test_calls.py tests/apps/test_ended.py -k "not by_ and not rights"
}

job_all() { # everything that `make test` runs: every step but demo and bench, then a table (arguments: only these steps)
    local step began status failed=() table="" logs="$RESULTS/logs"
    [ $# != 0 ] || set -- "${ALL_STEPS[@]}"
    mkdir -p "$logs"
    rm -f "$logs"/*.log
    for step in "$@"; do
        say "step $step"
        began=$SECONDS
        status=ok
        # In a shell of its own, so that `set -e` holds inside; one failing step does not hide the next ones.
        "$BASH" ci/run.sh "$step" 2>&1 | tee "$logs/$step.log" || { status=FAILED; failed+=("$step"); }
        table+="$(printf '%-8s %-7s %5d s  %s' "$step" "$status" $((SECONDS - began)) \
            "$(closing_lines "$logs/$step.log" | tr -d '=' | sed 's/^ *//; s/ *$//')")"$'\n'
        if [ "$status" = FAILED ] && [[ "$step" = setup || "$step" = build ]]; then
            say "nothing else can run after $step"
            break
        fi
    done
    printf '\n%-8s %-7s %7s  %s\n%s%-8s %-7s %5d s\n\n' step result time tests "$table" total \
        "$([ ${#failed[@]} = 0 ] && echo ok || echo FAILED)" "$SECONDS"
    for step in "$@"; do
        if [ -e "$logs/$step.log" ]; then closing_lines "$logs/$step.log"; fi
    done
    # Once more at the end, because a reader of a long output may have only that.
    for step in "${failed[@]}"; do
        printf '\nthe end of %s:\n' "$logs/$step.log"
        tail -n 40 "$logs/$step.log"
    done
    [ ${#failed[@]} = 0 ] || die "failed: ${failed[*]} (logs in $logs)"
}

job_help() { # this list
    echo "usage: ci/run.sh <job>"
    sed -n 's/^job_\([a-z0-9-]*\)() { # /\1\t/p' ci/run.sh | awk -F '\t' '{ printf "  %-8s %s\n", $1, $2 }'
}

job="${1:-help}"
declare -F "job_$job" >/dev/null || { job_help >&2; die "no job named '$job'"; }
shift || true
"job_$job" "$@"
