"""Unmodified programs on two hosts: deployments that must work, and how fast they are."""

from __future__ import annotations

import csv
import re
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ci.eri.pair import Failed, Pair, Stack, Started

Figures = dict[str, float]


@dataclass(frozen=True)
class Size:
    """The load of each program."""

    requests: int = 100_000
    clients: int = 50
    value_bytes: int = 512
    seconds: int = 10

    @staticmethod
    def small() -> Size:
        """For machines in emulation."""
        return Size(requests=1500, clients=8, seconds=12)


@dataclass(frozen=True)
class Run:
    """A deployment under a stack."""

    pair: Pair
    stack: Stack
    size: Size

    def redis_server(self, host: int, port: int, *options: str) -> Started:
        at = self.pair.hosts[host - 1]
        addresses = " ".join(filter(None, (at.address, at.address6)))
        folder = f"{self.pair.folder}-redis-{port}"
        self.pair.out(host, "mkdir", "-p", folder)
        common = ("--bind", *addresses.split(), "--protected-mode", "no", "--save", "", "--dir", folder)
        command = self.stack.of("redis-server", "--port", str(port), *common, *options)
        server = self.pair.start(host, *command)
        request = f"redis-cli -h {at.address} -p {port} ping | grep -q PONG"
        self.pair.wait_for(host, request, f"redis-server {port} answers", server)
        return server

    def redis(self, host: int, port: int, *words: str) -> str:
        """The output of a server's client on its own host, not accelerated."""
        return self.pair.out(
            host, "redis-cli", "-h", self.pair.address(host), "-p", str(port), *words
        ).strip()

    def redis_load(self, address: str, port: int, *more: str, client: int = 2) -> Figures:
        """The rates of a server for redis-benchmark on the host `client`."""
        size = self.size
        request = (
            "-t",
            "set,get",
            "-n",
            str(size.requests),
            "-c",
            str(size.clients),
            "-d",
            str(size.value_bytes),
        )
        command = self.stack.of("redis-benchmark", "-h", address, "-p", str(port), *request, *more)
        # Twice: by the second time the server has opened its device, and the client has its address.
        self.benchmark(command, self.pair.seconds * 2, client)
        figures = self.benchmark(command, self.pair.seconds * 2, client)
        if not {"set_per_s", "get_per_s"} <= figures.keys():
            raise Failed(f"redis-benchmark printed only {figures}")
        return figures

    def benchmark(self, command: list[str], seconds: float, client: int = 2) -> Figures:
        """The results of redis-benchmark for SET and GET."""
        printed = self.pair.out(client, *command, "--csv", seconds=seconds)
        figures: Figures = {}
        for row in csv.reader(line for line in printed.splitlines() if line.startswith('"')):
            if row[0] in ("SET", "GET"):
                name = row[0].lower()
                figures |= {f"{name}_per_s": float(row[1])}
                columns = zip(("avg", "min", "p50", "p95", "p99", "max"), row[2:8], strict=True)
                figures |= {f"{name}_{column}_ms": float(value) for column, value in columns}
        if not figures:
            raise Failed(f"redis-benchmark printed no figures: {printed[-300:]}")
        return figures


@dataclass(frozen=True)
class Comparison:
    """The original's comparison: its parameters of redis-benchmark."""

    requests: int = 5_000_000
    clients: int = 100
    threads: int = 4
    keys: int = 10_000
    value_bytes: int = 512
    #: The time limit of a run.
    seconds: int = 600

    @staticmethod
    def small() -> Comparison:
        """For machines in emulation: as many clients and threads, fewer requests."""
        return Comparison(requests=4000, seconds=120)

    def commands(self, pair: Pair, stack: Stack) -> dict[str, str]:
        """The command line, without the folder."""
        return {"server": shlex.join(self._server(stack)), "client": shlex.join(self._client(pair, stack))}

    def _server(self, stack: Stack) -> list[str]:
        return stack.of("redis-server", "--port", "6400", "--protected-mode", "no", "--save", "")

    def _client(self, pair: Pair, stack: Stack) -> list[str]:
        to = ("-h", pair.address(1), "-p", "6400", "-c", str(self.clients), "-n", str(self.requests))
        load = (
            "-r",
            str(self.keys),
            "--threads",
            str(self.threads),
            "-d",
            str(self.value_bytes),
            "-t",
            "set",
        )
        return stack.of("redis-benchmark", *to, *load)

    def run(self, run: Run) -> Figures:
        """One run, on a new server, which a tenth of the run warms up."""
        pair = run.pair
        folder = f"{pair.folder}-redis-original"
        pair.out(1, "mkdir", "-p", folder)
        server = pair.start(1, *self._server(run.stack), "--dir", folder)
        request = f"redis-cli -h {pair.address(1)} -p 6400 ping | grep -q PONG"
        pair.wait_for(2, request, "redis-server 6400 answers", server)
        warm = replace(self, requests=self.requests // 10)
        run.benchmark(warm._client(pair, run.stack), self.seconds)
        counted = pair.counters(1)
        before = cpu_seconds(pair, server)
        figures = run.benchmark(self._client(pair, run.stack), self.seconds)
        after = cpu_seconds(pair, server)
        spent = {name: (after[name] - before[name]) * 1e6 / self.requests for name in after}
        figures |= {f"{name}_cpu_us": round(each, 3) for name, each in spent.items()}
        return figures | paths(counted, pair.counters(1))


def paths(before: dict[int, dict[str, int]], after: dict[int, dict[str, int]]) -> Figures:
    """What an accelerated server did on links between two readings of its counters. Empty for others."""
    figures: Figures = {}
    for process, counted in after.items():
        since = {name: count - before.get(process, {}).get(name, 0) for name, count in counted.items()}
        link, tcp = (since[f"rx_bytes_{path}"] + since[f"tx_bytes_{path}"] for path in ("link", "tcp"))
        figures["link_share"] = round(link / (link + tcp), 3) if link + tcp else 0.0
        for name in ("links_established", "streams_promoted", "opens_refused", "pledges_voided"):
            figures[name] = since.get(name, 0)
    return figures


def cpu_seconds(pair: Pair, server: Started) -> dict[str, float]:
    """The processor time so far of a server, of its host and of the other one, counted in hundredths.

    A host's includes interrupts, and the work of the kernel's own threads.
    """
    of_host = ("head", "-n", "1", "/proc/stat")
    user, system = of_process(pair.of(server, "cat /proc/$1/stat"))
    return {
        "server": user + system,
        "server_user": user,
        "server_host": of_processors(pair.out(1, *of_host)),
        "client_host": of_processors(pair.out(2, *of_host)),
    }


def of_processors(line: str) -> float:
    """The time in which processors were not idle, from the first line of /proc/stat."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, line.split()[1:])
    return (user + nice + system + irq + softirq) / 100


def of_process(line: str) -> tuple[float, float]:
    """The time in a program, and that in the kernel, from its /proc/PID/stat."""
    fields = line.rpartition(")")[2].split()
    return int(fields[11]) / 100, int(fields[12]) / 100


def redis_single(run: Run) -> Figures:
    run.redis_server(1, 6400)
    return run.redis_load(run.pair.address(1), 6400)


def redis_ipv6(run: Run) -> Figures:
    address = run.pair.hosts[0].address6
    if not address:
        raise Failed("the hosts have no IPv6 addresses")
    run.redis_server(1, 6400)
    return run.redis_load(address, 6400)


KEYS = 300


def write_keys(run: Run, host: int, port: int) -> None:
    script = f"for i = 1, {KEYS} do redis.call('set', 'key' .. i, string.rep(i .. '.', 100)) end return 1"
    run.redis(host, port, "eval", script, "0")


def same_data(run: Run, *servers: tuple[int, int]) -> None:
    """All have the same keys and values."""
    deadline = time.monotonic() + run.pair.seconds
    while True:
        digests = {run.redis(host, port, "debug", "digest") for host, port in servers}
        if len(digests) == 1 and not digests <= {"0" * 40}:
            return
        if time.monotonic() > deadline:
            raise Failed(f"the data differs: {digests}")


DEBUG = ("--enable-debug-command", "yes")
#: As in the deployments of Gazelle's document, except for a server alone.
APPEND = ("--appendonly", "yes")


def replicated(run: Run) -> tuple[Started, Started]:
    """A server on each host, the second one following the first."""
    options = (*DEBUG, *APPEND)
    server = run.redis_server(1, 6400, *options)
    following = ("--replicaof", run.pair.address(1), "6400")
    replica = run.redis_server(2, 6401, *options, *following)
    up = f"redis-cli -h {run.pair.address(2)} -p 6401 info replication | grep -q master_link_status:up"
    run.pair.wait_for(2, up, "the replica follows", server, replica)
    return server, replica


def redis_replica(run: Run) -> Figures:
    replicated(run)
    figures = run.redis_load(run.pair.address(1), 6400)
    write_keys(run, 1, 6400)
    same_data(run, (1, 6400), (2, 6401))
    return figures


def redis_sentinel(run: Run) -> Figures:
    """The server is killed; the sentinels promote the replica, which has everything that was written."""
    server, _ = replicated(run)
    settings = (
        f"protected-mode no\nsentinel monitor mine {run.pair.address(1)} 6400 2\n"
        "sentinel down-after-milliseconds mine 3000\nsentinel failover-timeout mine 20000\n"
    )
    sentinels = []
    # Not 20000 above those of servers: where devices listen at TCP ports, these are taken for links.
    for host, port in ((1, 16400), (2, 16401), (2, 16402)):
        file = f"{run.pair.folder}-sentinel-{port}.conf"
        run.pair.out(
            host, "sh", "-c", f"printf 'port {port}\nbind {run.pair.address(host)}\n{settings}' >{file}"
        )
        sentinels.append(run.pair.start(host, *run.stack.of("redis-server", file, "--sentinel")))
    cli = f"redis-cli -h {run.pair.address(2)} -p 16401"
    condition = f"{cli} info sentinel | grep -q 'status=ok.*slaves=1,sentinels=3'"
    run.pair.wait_for(2, condition, "the sentinels have found each other", *sentinels)
    write_keys(run, 1, 6400)
    same_data(run, (1, 6400), (2, 6401))
    run.pair.signal(server, "KILL")
    began = time.monotonic()
    moved = f"{cli} sentinel get-master-addr-by-name mine | grep -q 6401"
    run.pair.wait_for(2, moved, "the sentinels choose another server", *sentinels)
    run.pair.wait_for(
        2, f"redis-cli -h {run.pair.address(2)} -p 6401 role | grep -q master", "the replica leads"
    )
    figures = {"failover_s": round(time.monotonic() - began, 1)}
    found = run.redis(2, 6401, "dbsize")
    if int(found) != KEYS:
        raise Failed(f"{found} keys of {KEYS} are left")
    # From the other host: a client on the server's own host would not use the network.
    return figures | run.redis_load(run.pair.address(2), 6401, client=1)


def redis_cluster(run: Run) -> Figures:
    """Six servers, three on each host: the ports of their bus are the servers' plus 10000."""
    servers = [(host, 7100 + 10 * host + i) for i in range(3) for host in (1, 2)]
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "15000", *APPEND)
    started = [run.redis_server(host, port, *options) for host, port in servers]
    nodes = [f"{run.pair.address(host)}:{port}" for host, port in servers]
    create = ("redis-cli", "--cluster", "create", *nodes, "--cluster-replicas", "1", "--cluster-yes")
    run.pair.out(2, *run.stack.of(*create), seconds=run.pair.seconds * 2)
    for host, port in servers:
        ok = f"redis-cli -h {run.pair.address(host)} -p {port} cluster info | grep -q cluster_state:ok"
        run.pair.wait_for(host, ok, f"the cluster is whole for {port}", *started)
    return run.redis_load(run.pair.address(1), servers[0][1], "--cluster")


def memcached(run: Run) -> Figures:
    user = ("-u", "root") if run.pair.out(1, "id", "-u").strip() == "0" else ()
    address = run.pair.address(1)
    server = run.pair.start(1, *run.stack.of("memcached", "-l", address, "-p", "11300", *user))
    run.pair.wait_for(1, f"memcstat --servers={address}:11300 | grep -q pid", "memcached answers", server)
    # Values are 2.5 KB: a connection of a few hundred is over before a new server has opened its device.
    each = max(run.size.requests // run.size.clients, 500)
    load = (f"--servers={address}:11300", "--test=set", f"--concurrency={run.size.clients}")
    for _ in range(2):
        began = time.monotonic()
        slap = run.stack.of("memcslap", *load, f"--execute-number={each}")
        run.pair.out(2, *slap, seconds=run.pair.seconds * 2)
        took = time.monotonic() - began
    stats = run.pair.out(1, "memcstat", f"--servers={address}:11300")
    sets = int(re.findall(r"cmd_set: (\d+)", stats)[0])
    if sets < 2 * each * run.size.clients:
        raise Failed(f"the server saw {sets} sets of {2 * each * run.size.clients}")
    # Of the second time; includes the start of the client.
    return {"set_per_s": round(each * run.size.clients / took, 1)}


NGINX = """user root; daemon off; worker_processes 2; pid {folder}/nginx.pid; error_log stderr notice;
events {{ worker_connections 512; }}
http {{ access_log off; keepalive_requests 1000000; client_body_temp_path {folder}/body;
proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;
scgi_temp_path {folder}/scgi; server {{ listen {address}:8100; root {folder}/served; }} }}"""


def nginx(run: Run) -> Figures:
    folder, address = f"{run.pair.folder}-nginx", run.pair.address(1)
    config = NGINX.format(folder=folder, address=address).replace("\n", " ")
    page = f"head -c 1024 /dev/zero | tr '\\0' x >{folder}/served/page"
    large = f"head -c 2000000 /dev/urandom >{folder}/served/large"
    prepare = f"mkdir -p {folder}/served; {page}; {large}; echo '{config}' >{folder}/nginx.conf"
    run.pair.out(1, "sh", "-c", prepare)
    server = run.pair.start(
        1, *run.stack.of("nginx", "-p", folder, "-c", f"{folder}/nginx.conf", "-e", "stderr")
    )
    run.pair.wait_for(1, f"curl -sf -o /dev/null http://{address}:8100/page", "nginx answers", server)
    get = shlex.join(run.stack.of("curl", "-sf", f"http://{address}:8100/large"))
    fetched = run.pair.out(2, "sh", "-c", f"{get} | sha256sum")
    if fetched != run.pair.out(1, "sh", "-c", f"sha256sum <{folder}/served/large"):
        raise Failed("a file came different")
    load = ("wrk", "-t", "1", "-c", str(run.size.clients), "-d", f"{run.size.seconds}s")
    printed = run.pair.out(2, *run.stack.of(*load, f"http://{address}:8100/page"))
    rate = re.search(r"Requests/sec: *([0-9.]+)", printed)
    if not rate or "Socket errors" in printed or "Non-2xx" in printed:
        raise Failed(f"wrk: {printed.strip()[-300:]}")
    return {"requests_per_s": float(rate[1])}


#: The folder of PostgreSQL's programs on a host: Debian keeps them outside PATH, by version.
POSTGRESQL = """
for f in $(ls -d /usr/lib/postgresql/*/bin /usr/pgsql-*/bin 2>/dev/null | sort -rV) /usr/bin
do
    if [ -x "$f/initdb" ] && [ -x "$f/pgbench" ]; then echo "$f"; exit; fi
done
echo 'initdb and pgbench are not installed' >&2
exit 1
"""


def postgresql(run: Run) -> Figures:
    folder, address = f"{run.pair.folder}-postgres", run.pair.address(1)
    tools = run.pair.out(1, "sh", "-c", POSTGRESQL).strip()
    there = run.pair.out(2, "sh", "-c", POSTGRESQL).strip()
    # It refuses to run as root.
    root = run.pair.out(1, "id", "-u").strip() == "0"
    change = ("setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups") if root else ()
    owner = f"chown postgres {folder}" if root else "true"
    run.pair.out(1, "sh", "-c", f"mkdir -p {folder}; {owner}")
    initdb = (f"{tools}/initdb", "-D", f"{folder}/data", "-U", "postgres", "--auth=trust", "--no-sync")
    run.pair.out(1, *change, *initdb, "--locale=C", seconds=run.pair.seconds * 3)
    trust = f"echo 'host all all {run.pair.address(2)}/32 trust' >>{folder}/data/pg_hba.conf"
    run.pair.out(1, *change, "sh", "-c", trust)
    settings = (
        "--port=5500",
        f"--listen_addresses={address}",
        f"--unix_socket_directories={folder}",
        "--fsync=off",
    )
    server = run.pair.start(1, *change, *run.stack.of(f"{tools}/postgres", "-D", f"{folder}/data", *settings))
    run.pair.wait_for(1, f"{tools}/pg_isready -h {folder} -p 5500", "PostgreSQL is ready", server)
    at = ("-h", address, "-p", "5500", "-U", "postgres")
    run.pair.out(1, f"{tools}/pgbench", "-h", folder, "-p", "5500", "-U", "postgres", "-i", "-q", "postgres")
    load = ("-n", "-S", "-c", "4", "-T", str(run.size.seconds), *at, "postgres")
    printed = run.pair.out(2, *run.stack.of(f"{there}/pgbench", *load), seconds=run.pair.seconds * 2)
    rate = re.search(r"tps = ([0-9.]+)", printed)
    failures = re.search(r"number of failed transactions: (\d+)", printed)
    if not rate or (failures and int(failures[1])):
        raise Failed(f"pgbench: {printed.strip()[-300:]}")
    return {"transactions_per_s": float(rate[1])}


DEPLOYMENTS: dict[str, Callable[[Run], Figures]] = {
    "redis-single": redis_single,
    "redis-ipv6": redis_ipv6,
    "redis-replica": redis_replica,
    "redis-sentinel": redis_sentinel,
    "redis-cluster": redis_cluster,
    "memcached": memcached,
    "nginx": nginx,
    "postgresql": postgresql,
}


@dataclass(frozen=True)
class Outcome:
    """The outcome of a deployment."""

    works: bool
    figures: Figures
    #: The accelerated processes' share of bytes on links, on the first host; None under other stacks.
    link_share: float | None = None
    link_bytes: int = 0
    failure: str = ""


def deploy(name: str, run: Run) -> Outcome:
    """Runs a deployment, and ends it."""
    ours = run.stack.name == "netacc"
    try:
        if not ours:
            return Outcome(True, DEPLOYMENTS[name](run))
        with run.pair.watched(1) as watch:
            figures = DEPLOYMENTS[name](run)
        return Outcome(True, figures, round(watch.share(), 3), watch.bytes("link"))
    except Failed as failure:
        return Outcome(False, {}, failure=str(failure))
    finally:
        run.pair.end()
