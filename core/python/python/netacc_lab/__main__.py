"""`python -m netacc_lab`: runs programs from seeds or a fuzzer's corpus, replays and shrinks failures."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from netacc_lab.differential import Differential, OpenFindings, Tally, Verdict, shrink, shrink_steps
from netacc_lab.executors import Far, Host
from netacc_lab.pieces import OtherRunError, Pieces
from netacc_lab.program import Mix, Program
from netacc_lab.simulated import MIXES, Simulated, with_faults
from netacc_lab.strategies import Draw, Profile, across_hosts, from_seed

#: So often the file with the counts is written, so that a run which is killed loses little.
WRITE_INTERVAL_S = 30.0


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
        help="compare this with kernel TCP: the library, or the core in a simulation, with faults",
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
        "--settle-ms", type=int, default=Far.settle_ms, help="time that the other end needs to answer"
    )
    far.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for the library there")
    commands = parser.add_subparsers(dest="command", required=True)
    many = commands.add_parser("run", help="run the programs of seeds")
    many.add_argument("--seeds", default="0..1000", help="FROM..TO")
    many.add_argument("--profile", type=Profile, default=Profile.FAST)
    many.add_argument("--mix", type=Mix, action="append", help="only these operations")
    corpus = commands.add_parser("corpus", help="run the inputs that a fuzzer has kept")
    corpus.add_argument(
        "folder", type=Path, nargs="+", help="folders of inputs of the fuzz target `programs`"
    )
    for command in (many, corpus):
        command.add_argument("--seconds", type=float, default=float("inf"), help="end after so long")
        command.add_argument(
            "--known", type=Path, help="signatures of open findings: counted, but no failure"
        )
        command.add_argument(
            "--json", type=Path, help="write the counts there, also now and then while it runs"
        )
        command.add_argument(
            "--resume",
            action="store_true",
            help="go on behind the programs that are counted in the file of --json, and add to it",
        )
        command.add_argument("--revision", default="", help="what is tested, for the file of --json")
        command.add_argument("--features", action="store_true", help="print the counts of each feature, too")
        command.add_argument(
            "--save", type=Path, help="write the shrunk program of each new signature into this folder"
        )
        command.add_argument(
            "--native", action="store_true", help="the oracle against itself: tests the tests"
        )
    replay = commands.add_parser("replay", help="run one program, from a file or a seed")
    replay.add_argument("program", help="a JSON file, an input of a fuzzer, or a seed")
    replay.add_argument("--profile", type=Profile, default=Profile.FAST)
    replay.add_argument("--mix", type=Mix, action="append")
    replay.add_argument("--seed", type=int, default=0, help="of a simulation that runs the program of a file")
    replay.add_argument("--times", type=int, default=1)
    replay.add_argument("--shrink", action="store_true")
    arguments = parser.parse_args()
    if arguments.command == "replay":
        return run_one(arguments)
    return run(arguments, of_seeds(arguments) if arguments.command == "run" else of_corpus(arguments))


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
    """The result of a seed with that executor."""
    simulated = MIXES.get(arguments.executor)
    mixes = tuple(arguments.mix or simulated or Mix)
    if simulated:
        return with_faults(seed, arguments.profile, mixes)
    return (across_hosts if arguments.host else from_seed)(seed, arguments.profile, mixes)


@dataclass(frozen=True)
class Source:
    """Where programs come from."""

    #: By the first number: the command that replays each, and the program.
    programs: Callable[[int], Iterator[tuple[str, Program]]]
    count: int
    #: Of the first program, for executors that have one.
    first_seed: int
    #: Shrinks the failed program with that label.
    shrink: Callable[[Differential, str, Verdict], Program]
    #: For the document with the counts: what all pieces of a run have in common.
    description: dict[str, object]


def of_seeds(arguments: argparse.Namespace) -> Source:
    """The programs of the seeds that the arguments name."""
    start, end = (int(number) for number in arguments.seeds.split(".."))
    options = f" --profile {arguments.profile.value}"
    options += "".join(f" --mix {mix.value}" for mix in arguments.mix or ())

    def shrunk(lab: Differential, label: str, verdict: Verdict) -> Program:
        seed = int(label.split()[0])
        if isinstance(lab, Simulated):
            lab.seed = seed
        return shrink_failure(lab, draw_of(arguments, seed), verdict)

    def programs(first: int) -> Iterator[tuple[str, Program]]:
        for seed in range(start + first, end):
            yield f"{seed}{options}", draw_of(arguments, seed).program

    mixes = [mix.value for mix in arguments.mix or ()]
    description = {"first_seed": start, "profile": arguments.profile.value, "mixes": mixes}
    return Source(programs, end - start, start, shrunk, description)


def of_corpus(arguments: argparse.Namespace) -> Source:
    """The programs of the files in the folders that the arguments name."""
    files = sorted(path for folder in arguments.folder for path in folder.iterdir() if path.is_file())

    def shrunk(lab: Differential, _: str, verdict: Verdict) -> Program:
        def fails(candidate: Program) -> bool:
            again = lab.check(candidate)
            return again.failed and again.signature == verdict.signature

        return shrink_steps(verdict.program, fails)

    def programs(first: int) -> Iterator[tuple[str, Program]]:
        return ((str(path), Program.from_bytes(path.read_bytes())) for path in files[first:])

    return Source(programs, len(files), 0, shrunk, {"folders": [str(folder) for folder in arguments.folder]})


def run(arguments: argparse.Namespace, source: Source) -> int:
    known = OpenFindings.load(arguments.known) if arguments.known else OpenFindings()
    description = {**source.description, "executor": arguments.executor, "native": arguments.native}
    if arguments.resume and not arguments.json:
        print("--resume needs the file of --json", file=sys.stderr)
        return 2
    try:
        pieces = Pieces.load(arguments.json, description) if arguments.resume else Pieces(description)
    except OtherRunError as error:
        print(error, file=sys.stderr)
        return 2
    tally = pieces.tally
    new: dict[str, tuple[str, Verdict]] = {}
    labels: list[str] = []
    began = written = time.monotonic()

    def programs() -> Iterator[Program]:
        for label, program in source.programs(pieces.before):
            if time.monotonic() - began > arguments.seconds:
                return
            labels.append(label)
            yield program

    with laboratory(arguments, source.first_seed + pieces.before, native=arguments.native) as lab:
        for done, (index, verdict) in enumerate(lab.check_all(programs()), 1):
            tally.add(labels[index], verdict)
            in_order = pieces.judged(index, time.monotonic() - began)
            if done % 1000 == 0 and sys.stderr.isatty():
                print(f"\r{tally.programs} of {source.count}: {tally.describe()}", end="", file=sys.stderr)
            if verdict.failed:
                finding = known.explain(verdict)
                tally.findings[finding or "NEW"] += 1
                if finding is None:
                    new.setdefault(verdict.signature, (labels[index], verdict))
            if in_order and arguments.json and time.monotonic() - written > WRITE_INTERVAL_S:
                pieces.write(arguments.json, arguments.revision)
                written = time.monotonic()
        report(arguments, tally)
        if arguments.json:
            pieces.write(arguments.json, arguments.revision)
        for signature, (label, verdict) in new.items():
            print(f"\n{signature}\n{verdict.differences[0].describe()}")
            print(f"replay: python -m netacc_lab --executor {arguments.executor} replay {label}")
            if arguments.save:
                small = source.shrink(lab, label, verdict)
                arguments.save.mkdir(parents=True, exist_ok=True)
                name = "".join(c if c.isalnum() else "-" for c in signature)
                (arguments.save / f"{name}.json").write_text(small.pretty())
                print(small.pretty())
    return 1 if new else 0


def report(arguments: argparse.Namespace, tally: Tally) -> None:
    """Prints the counts."""
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(tally.describe())
    for signature, count in tally.signatures.most_common():
        print(f"  {count:6} {signature}, first {tally.first[signature]}")
    for finding, count in tally.findings.most_common():
        print(f"  {count:6} {finding}")
    if arguments.features:
        print(tally.describe_features())


def read_program(path: Path) -> Program:
    """A program as JSON, or an input of a fuzzer."""
    data = path.read_bytes()
    return Program.parse(data.decode()) if data.lstrip().startswith(b"{") else Program.from_bytes(data)


def run_one(arguments: argparse.Namespace) -> int:
    status = 0
    seed = int(arguments.program) if arguments.program.isdigit() else None
    with laboratory(arguments, arguments.seed if seed is None else seed) as lab:
        draw = None
        if seed is not None:
            draw = draw_of(arguments, seed)
            program = draw.program
        else:
            program = read_program(Path(arguments.program))
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
