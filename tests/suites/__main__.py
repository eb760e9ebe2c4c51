"""Runs suites of other projects natively and under netacc_run, and compares: `python -m tests.suites -h`."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

from tests.apps.lib.golang import MODES
from tests.apps.lib.paths import binaries
from tests.suites.cpython import CPython
from tests.suites.golang import Go
from tests.suites.libc_test import LibcTest
from tests.suites.libevent import Libevent
from tests.suites.libuv import Libuv
from tests.suites.node import Node
from tests.suites.outcomes import (
    Difference,
    Listed,
    Result,
    differing,
    kind_of,
    kinds,
    read_listed,
    reason_for,
)
from tests.suites.redis import Redis
from tests.suites.runs import Mode

HERE = Path(__file__).parent
RESULTS = Path("results/local")

#: The suites of the job.
CPYTHON = ["test_socket", "test_asyncio", "test_ssl", "test_selectors", "test_socketserver"]
#: Suites whose connections must be seen on links, or their outcomes prove nothing.
CONNECTED = {
    "test_socket",
    "test_asyncio",
    "test_ssl",
    "test_socketserver",
    "libuv",
    "libuv-tcp",
    "libevent",
    "node",
    "redis",
    "go-net",
    "go-net-http",
    "go-cgo-net",
    "go-cgo-net-http",
}
#: Modules of CPython that are run too, because they use connections in other ways.
MORE = [
    "test_epoll", "test_poll", "test_select", "test_httplib", "test_httpservers", "test_ftplib",
    "test_smtplib", "test_smtpd", "test_poplib", "test_imaplib", "test_nntplib", "test_telnetlib",
    "test_asyncore", "test_asynchat", "test_xmlrpc", "test_urllib2_localnet", "test_wsgiref",
    "test_logging", "test_signal", "test_subprocess", "test_fork1", "test_os", "test_posix",
    "test_threading", "test_docxmlrpc", "test_robotparser", "test_multiprocessing_fork",
    "test_multiprocessing_spawn", "test_multiprocessing_forkserver", "test_concurrent_futures",
]  # fmt: skip
#: Tests of libuv that are about TCP, by name.
LIBUV_TCP = (
    "tcp|callback_stack|connection_fail|delayed_accept|multiple_listen|ipc_listen|ping_pong|shutdown|poll_"
    "|readable"
)
#: Tests of libuv that are about UDP, by name.
LIBUV_UDP = "udp|watcher_cross_stop"

#: Packages of Go, linked statically and with C.
GO = {
    f"{mode}-{package.replace('/', '-')}": Go(f"{mode}-{package.replace('/', '-')}", package, MODES[mode])
    for mode in ("go", "go-cgo")
    for package in ("net", "net/http")
}

Suite = CPython | Go | LibcTest | Libevent | Libuv | Node | Redis


def suites(options: argparse.Namespace) -> dict[str, Suite]:
    """By name, in the order in which they run."""
    known: dict[str, Suite] = {n: CPython(n, options.python, options.limit) for n in [*CPYTHON, *MORE]}
    if options.libuv:
        known["libuv-tcp"] = Libuv("libuv-tcp", options.libuv.absolute(), LIBUV_TCP)
        known["libuv-udp"] = Libuv("libuv-udp", options.libuv.absolute(), LIBUV_UDP)
        known["libuv"] = Libuv("libuv", options.libuv.absolute())
    if options.libevent:
        known["libevent"] = Libevent("libevent", options.libevent.absolute())
    if options.node:
        known["node"] = Node("node", options.node.absolute(), "test-net-")
    if options.redis:
        known["redis"] = Redis("redis", options.redis.absolute())
    if options.libc_test:
        known["libc-test"] = LibcTest("libc-test", options.libc_test.absolute())
    if options.go:
        known |= GO
    names = options.suites or [n for n in known if n not in MORE and n != "libuv"]
    if options.more:
        names = [n for n in known if n not in ("libuv-tcp", "libuv-udp")]
    for name in names:
        if name not in known and name.startswith("test_"):
            known[name] = CPython(name, options.python, options.limit)
        if name not in known:
            raise SystemExit(
                f"no suite named {name}: {', '.join(known)}, or a module test_* of the interpreter"
            )
    return {name: known[name] for name in names}


def modes(options: argparse.Namespace, folder: Path) -> tuple[Mode, Mode]:
    run = [str(binaries() / "netacc_run")]
    if not options.default_promotion:
        # Connections of tests are short: by default few would ever be promoted.
        run += ["-F", "1"]
    log = folder / "netacc.log"
    accelerated = Mode("accelerated", run, {"NACC_LOG_PATH": str(log)}, folder / "counters.jsonl")
    return Mode("native"), accelerated


def compare(suite: Suite, options: argparse.Namespace, listed: list[Listed]) -> Result:
    result = Result(suite.name, suite.name in CONNECTED)
    folder = RESULTS / "suites" / suite.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    native, accelerated = modes(options, folder.absolute())
    for mode, outcomes in ((native, result.native), (accelerated, result.accelerated)):
        began = time.monotonic()
        outcomes.update(suite.run(mode, folder.absolute() / mode.name))
        result.seconds[mode.name] = time.monotonic() - began
        print(
            f"{suite.name:32} {mode.name:12} {result.seconds[mode.name]:6.0f} s  {kinds(outcomes)}",
            flush=True,
        )
    result.counters = accelerated.counters()
    again = differing(result.native, result.accelerated)
    found = {
        test: Difference(
            test,
            [kind_of(result.native, test)],
            [kind_of(result.accelerated, test)],
            result.accelerated[test].detail if test in result.accelerated else "",
            reason_for(listed, suite.name, test),
        )
        for test in again
    }
    # A test that is not sure of itself natively shows it when it is repeated.
    for i in range(options.rounds if again else 0):
        for mode in (native, accelerated):
            outcomes = suite.run(mode, folder.absolute() / f"{mode.name}-{i + 2}", again)
            for test, difference in found.items():
                rounds = difference.native if mode is native else difference.accelerated
                rounds.append(kind_of(outcomes, test))
    result.differences = list(found.values())
    return result


def table(results: list[Result]) -> str:
    head = (
        f"{'suite':32} {'passed':>13} {'failed':>13} {'skipped':>13} {'other':>9}  {'on links':>20}  result"
    )
    lines = [head]
    for r in results:
        native, accelerated = kinds(r.native), kinds(r.accelerated)
        other = [
            sum(n for kind, n in k.items() if kind in ("hung", "crashed")) for k in (native, accelerated)
        ]
        columns = [
            f"{native.get(kind, 0):>6}/{accelerated.get(kind, 0):<6}"
            for kind in ("passed", "failed", "skipped")
        ]
        link = r.counters["tx_bytes_link"] + r.counters["rx_bytes_link"]
        bad = [d for d in r.differences if not d.is_accepted]
        verdict = f"{len(r.differences)} differ, {len(bad)} without a reason" if r.differences else "alike"
        if not r.proves_something:
            verdict = "nothing on links" if native.get("passed") else "not there"
        lines.append(
            f"{r.suite:32} {' '.join(columns)} {other[0]:>4}/{other[1]:<4}  "
            f"{link:>12} B {r.link_share:>4.0%}  {verdict}"
        )
    return "\n".join(
        [
            *lines,
            "",
            "Numbers are native/accelerated. On links: bytes sent and received there, and their share.",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.suites", description=__doc__)
    parser.add_argument("suites", nargs="*", help="names; default: those of the job")
    parser.add_argument("--python", default="python3", help="an interpreter that has its test suite")
    parser.add_argument("--libuv", type=Path, help="libuv's built test/run-tests")
    parser.add_argument("--libevent", type=Path, help="libevent's built test/regress")
    parser.add_argument("--node", type=Path, help="test/parallel of Node's sources")
    parser.add_argument("--redis", type=Path, help="runtest of Redis's sources, with binaries in src")
    parser.add_argument(
        "--libc-test", type=Path, help="the sources of libc-test, the tests of musl's authors"
    )
    parser.add_argument("--go", action="store_true", help="the tests of Go's own packages")
    parser.add_argument("--more", action="store_true", help="every suite that is known")
    parser.add_argument(
        "--rounds", type=int, default=3, help="how often tests that differ are repeated in each mode"
    )
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one test")
    parser.add_argument("--default-promotion", action="store_true", help="promote as configured, not at once")
    options = parser.parse_args()
    listed = read_listed(HERE / "differences.toml")
    results: list[Result] = []
    for suite in suites(options).values():
        results.append(compare(suite, options, listed))
        RESULTS.mkdir(parents=True, exist_ok=True)
        text = json.dumps([r.to_json() for r in results], indent=1)
        (RESULTS / "suites.json").write_text(text + "\n", encoding="utf-8")
    print()
    for result in results:
        for d in result.differences:
            why = d.reason or ("differs natively from run to run" if d.is_flaky_natively else "NO REASON")
            print(f"{result.suite}: {d.test}\n    native {d.native}, accelerated {d.accelerated}: {why}")
            if not d.is_accepted and d.detail:
                print("    | " + "\n    | ".join(d.detail.strip().splitlines()[-25:]))
    print(table(results))
    bad = [r.suite for r in results if not r.is_good]
    good = len(results) - len(bad)
    print(f"suites: {good} passed, {len(bad)} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
