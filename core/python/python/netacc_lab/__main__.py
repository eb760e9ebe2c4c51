"""`python -m netacc_lab`: runs programs from seeds, replays and shrinks failures."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from netacc_lab.differential import Differential, OpenFindings, Tally, Verdict, shrink, shrink_steps
from netacc_lab.executors import Far, Host
from netacc_lab.program import Mix, Program
from netacc_lab.simulated import MIXES, Simulated, with_faults
from netacc_lab.strategies import Draw, Profile, across_hosts, from_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m netacc_lab", description=__doc__)
    parser.add_argument(
        "--binaries", type=Path, default=Path("target/release"), help="folder of netacc-exec, netacc_run"
    )
    parser.add_argument("--log", type=Path, help="where the library writes its log")
    parser.add_argument(
        "--executor",
        choices=("shm", *MIXES),
        default="shm",
        help="what is compared with kernel TCP: the library, or the core in a simulation, with faults",
    )
    parser.add_argument(
        "--ns3", type=Path, default=Path("target/ns3/netacc-ns3-exec"), help="the executor ns3"
    )
    far = parser.add_argument_group("two machines instead of this one's addresses")
    far.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="COMMAND=ADDRESS[,ADDRESS6]",
        help="runs the words after it there, and where that is: 'ssh eri1=10.0.0.1'; twice",
    )
    far.add_argument(
        "--host-shell", action="store_true", help="--host makes a line of the words for a shell, as ssh does"
    )
    far.add_argument("--host-binaries", type=Path, help="the folder of netacc-exec there; else --binaries")
    far.add_argument("--ports", default=Far.ports, help="for listeners; plus 20000 they are to be ports too")
    far.add_argument(
        "--slowness", type=int, default=1, help="how much slower than an ordinary machine they are"
    )
    far.add_argument(
        "--settle-ms", type=int, default=Far.settle_ms, help="what the other end needs to answer"
    )
    far.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for the library there")
    commands = parser.add_subparsers(dest="command", required=True)
    many = commands.add_parser("run", help="run the programs of seeds")
    many.add_argument("--seeds", default="0..1000", help="FROM..TO")
    many.add_argument("--profile", type=Profile, default=Profile.FAST)
    many.add_argument("--mix", type=Mix, action="append", help="only these operations")
    many.add_argument("--seconds", type=float, default=float("inf"), help="end after so long")
    many.add_argument("--known", type=Path, help="signatures of open findings: counted, but no failure")
    many.add_argument("--json", type=Path, help="write the counts there")
    many.add_argument(
        "--save", type=Path, help="write the shrunk program of each new signature into this folder"
    )
    many.add_argument("--native", action="store_true", help="the oracle against itself: tests the tests")
    replay = commands.add_parser("replay", help="run one program, from a file or a seed")
    replay.add_argument("program", help="a JSON file, or a seed")
    replay.add_argument("--profile", type=Profile, default=Profile.FAST)
    replay.add_argument("--mix", type=Mix, action="append")
    replay.add_argument("--seed", type=int, default=0, help="of a simulation that runs the program of a file")
    replay.add_argument("--times", type=int, default=1)
    replay.add_argument("--shrink", action="store_true")
    arguments = parser.parse_args()
    return run(arguments) if arguments.command == "run" else run_one(arguments)


def shrink_failure(lab: Differential, draw: Draw, verdict: Verdict, seconds: float = 30.0) -> Program:
    def fails(candidate: Program) -> bool:
        again = lab.check(candidate)
        return again.failed and again.signature == verdict.signature

    return shrink(verdict.program, draw.shape, draw.decisions, fails, budget_s=seconds)


def machines(arguments: argparse.Namespace) -> Far | None:
    """The machines that the arguments name, if they do."""
    hosts = []
    for text in arguments.host:
        command, _, addresses = text.rpartition("=")
        address, _, address6 = addresses.partition(",")
        binaries = arguments.host_binaries or arguments.binaries.resolve()
        reach = tuple(shlex.split(command))
        hosts.append(Host(reach, address, address6, binaries, quoted=arguments.host_shell))
    if not hosts:
        return None
    env = dict(pair.split("=", 1) for pair in arguments.env)
    return Far(tuple(hosts), arguments.ports, arguments.slowness, arguments.settle_ms, env)


def laboratory(arguments: argparse.Namespace, seed: int, *, native: bool = False) -> Differential:
    """The executors that the arguments name; of a simulation, with the first seed."""
    if arguments.executor in MIXES:
        return Simulated(arguments.binaries, arguments.executor, ns3=arguments.ns3, seed=seed)
    far = machines(arguments)
    return Differential(arguments.binaries, log=arguments.log, accelerated=not native, far=far)


def draw_of(arguments: argparse.Namespace, seed: int) -> Draw:
    """What a seed gives for that executor."""
    simulated = MIXES.get(arguments.executor)
    mixes = tuple(arguments.mix or simulated or Mix)
    if simulated:
        return with_faults(seed, arguments.profile, mixes)
    return (across_hosts if arguments.host else from_seed)(seed, arguments.profile, mixes)


def run(arguments: argparse.Namespace) -> int:
    start, end = (int(number) for number in arguments.seeds.split(".."))
    known = OpenFindings.load(arguments.known) if arguments.known else OpenFindings()
    tally = Tally()
    new: list[tuple[int, Verdict]] = []
    began = time.monotonic()

    def programs() -> Iterator[Program]:
        for seed in range(start, end):
            if time.monotonic() - began > arguments.seconds:
                return
            yield draw_of(arguments, seed).program

    with laboratory(arguments, start, native=arguments.native) as lab:
        for index, verdict in lab.check_all(programs()):
            seed = start + index
            tally.add(seed, verdict)
            if not verdict.failed:
                continue
            finding = known.explain(verdict)
            tally.findings[finding or "NEW"] += 1
            if finding is None:
                new.append((seed, verdict))
        tally.seconds = time.monotonic() - began
        print(tally.describe())
        for signature, count in tally.signatures.most_common():
            print(f"  {count:6} {signature}, first seed {tally.first[signature]}")
        for finding, count in tally.findings.most_common():
            print(f"  {count:6} {finding}")
        if arguments.json:
            document = {"seeds": [start, start + tally.programs], "profile": arguments.profile.value}
            document["executor"] = arguments.executor
            document |= {name: getattr(tally, name) for name in vars(tally) if name != "first"}
            arguments.json.write_text(json.dumps(document, indent=1) + "\n")
        told: set[str] = set()
        for seed, verdict in new:
            if verdict.signature in told:
                continue
            told.add(verdict.signature)
            mix = "".join(f" --mix {mix.value}" for mix in arguments.mix or ())
            print(f"\n{verdict.signature}\n{verdict.differences[0].describe()}")
            options = f"--executor {arguments.executor} replay {seed} --profile {arguments.profile.value}"
            print(f"replay: python -m netacc_lab {options}{mix}")
            if arguments.save:
                if isinstance(lab, Simulated):
                    lab.seed = seed
                small = shrink_failure(lab, draw_of(arguments, seed), verdict)
                arguments.save.mkdir(parents=True, exist_ok=True)
                name = "".join(c if c.isalnum() else "-" for c in verdict.signature)
                (arguments.save / f"{name}.json").write_text(small.pretty())
                print(small.pretty())
    return 1 if new else 0


def run_one(arguments: argparse.Namespace) -> int:
    status = 0
    seed = int(arguments.program) if arguments.program.isdigit() else None
    with laboratory(arguments, arguments.seed if seed is None else seed) as lab:
        draw = None
        if seed is not None:
            draw = draw_of(arguments, seed)
            program = draw.program
        else:
            program = Program.load(Path(arguments.program))
            if arguments.host and len(set(program.data["hosts"])) == 1:
                program = program.spread() or program
        for _ in range(arguments.times):
            verdict = lab.check(program)
            state = "agrees" if not verdict.differences else "differs" if verdict.stable else "unstable"
            print(state, verdict.signature)
            if verdict.failed:
                status = 1
                for difference in verdict.differences[:5]:
                    print(difference.describe())
                if arguments.shrink:

                    def fails(candidate: Program, wanted: str = verdict.signature) -> bool:
                        again = lab.check(candidate)
                        return again.failed and again.signature == wanted

                    small = shrink_failure(lab, draw, verdict) if draw else shrink_steps(program, fails)
                    print(small.pretty())
                    break
    return status


if __name__ == "__main__":
    sys.exit(main())
