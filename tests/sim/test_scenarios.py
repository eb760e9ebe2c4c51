"""Scenarios are checked before anything runs, and errors name the key and the allowed values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from netacc_lab.sim import (
    Scenario,
    ScenarioError,
    declared,
    estimate,
    paths,
    profiles,
    read,
    resolve,
    runs,
    units,
)
from netacc_lab.sim.cli import main
from netacc_lab.sim.model import OF_A_HOST, Placement, Topology
from netacc_lab.sim.rate_control import USERS
from netacc_lab.sim.topology import build

from tests.sim.conftest import Write

READY = sorted(paths.scenarios_folder().glob("*.toml"))


@pytest.mark.parametrize("file", READY, ids=lambda file: file.stem)
def test_ready_scenarios_resolve(file: Path) -> None:
    """Breaks if a ready scenario cannot be run, or its dry run estimates nothing."""
    found = runs(file)
    assert len({json.dumps(run.resolved, sort_keys=True) for run in found}) == len(found)
    assert all(estimate.events(run.resolved) > 0 for run in found)
    assert read(file)["question"].endswith("?")


def test_there_are_enough_ready_scenarios() -> None:
    """Breaks if questions that users ask are lost."""
    assert len(READY) >= 10


def test_schema_is_published() -> None:
    """Breaks if the published schema is not the one that is obeyed, or does not accept what it should."""
    published = json.loads((paths.scenarios_folder() / "schema.json").read_text())
    assert published == Scenario.model_json_schema(by_alias=True), (
        "netacc sim schema >sim/scenarios/schema.json"
    )
    for file in READY:
        jsonschema.validate(read(file), published)


WRONG = [
    # The change, the key in the message, and the allowed values in the message.
    (('delay = "1us"', 'delay = "1 parsec"'), "topology.delay", "ns, us, ms, s"),
    (('delay = "1us"', "delay = 1"), "topology.delay", "a time: a number and one of"),
    (('delay = "1us"', 'delay = "0.5ns"'), "topology.delay", "no whole number of ns"),
    (('rate = "25Gbit/s"', 'rate = "25GB"'), "topology.rate", "Gbit/s"),
    (('rate = "25Gbit/s"', 'rat = "25Gbit/s"'), "topology.rat", "no such key; there are delay, hosts"),
    (('kind = "star"', 'kind = "ring"'), "topology.kind", "'star'"),
    (('kind = "star"', 'kind = "leaf-spine"'), "topology.hosts", "has no effect on leaf-spine"),
    (("[device]", '[topology.switch]\necn-min = "300kB"\n[device]'), "ecn-min", "more than ecn-max, 200000"),
    (("[device]", '[topology.switch]\npfc-xon = "101kB"\n[device]'), "pfc-xon", "more than pfc-xoff, 100000"),
    (
        ("[device]", '[topology.switch]\nport-buffer = "1B"\n[device]'),
        "port-buffer",
        "a frame has up to 4198",
    ),
    (("[device]", '[topology.switch]\nshared-buffer = "4KiB"\n[device]'), "shared-buffer", "gets 2048 bytes"),
    (("[measure]", '[stack]\nwake-up = "1us"\n[measure]'), "stack.wake-up", "calls take no time"),
    (("[measure]", "[host]\ncores = 4\n[measure]"), "host.cores", "calls take no time"),
    (("hosts = 3", "hosts = 33\nswitch.pfc = true"), "port-buffer", "would be dropped"),
    (("hosts = 3", 'hosts = 3\nloss = "150%"'), "topology.loss", "at most 100%"),
    (('response = "1KiB"', 'response = "10GiB"'), "workload.0", "at most 2147483647 bytes"),
    (('duration = "1ms"', 'duration = "0s"'), "measure.duration", "at least 1ns"),
    (('duration = "1ms"', 'duration = "1ms"\nstall = "0s"'), "measure.stall", "at least 1ns"),
    (("hosts = 3", "hosts = 2"), "workload", "room for 2 hosts"),
    (("hosts = 3", 'hosts = 3\nplacement = "spread"'), "topology.placement", "has no effect on star"),
    (('"roce-100g"', '"roce-1g"'), "device.profile", "there are erdma-proxy, ideal, roce-100g"),
    (('"roce-100g"', '"free"'), "device.profile", "is of a host"),
    (('"roce-100g"', '"roce-100g"\nmtu = "4KiB"\nwindow = "8KiB"'), "device.window", "no effect unless"),
    (('"roce-100g"', '"roce-100g"\nrate-control = "dcqcn-paper"'), "topology.switch.ecn", "must be true"),
    (
        ('"roce-100g"', '"roce-100g"\nswift-target = "9us"'),
        "device.swift-target",
        "unless rate-control is swift",
    ),
    (
        ('"roce-100g"', '"roce-100g"\nrate-control = "timely"\ndcqcn-hyper = "1Gbit/s"'),
        "device.dcqcn-hyper",
        "unless rate-control is dcqcn-paper or dcqcn-hpcc",
    ),
    (
        ('"roce-100g"', '"roce-100g"\nrate-control = "timely"\ntimely-low = "500us"'),
        "device.timely-low",
        "not below timely-high",
    ),
    (
        ('"roce-100g"', '"roce-100g"\nrate-control = "timely"\ntimely-decrease = "101%"'),
        "device.timely-decrease",
        "at most 100%",
    ),
    (
        ('"roce-100g"', '"roce-100g"\nrate-control = "swift"\nswift-min-window-milli = 256000'),
        "device.swift-min-window",
        "not below swift-max-window",
    ),
    (
        ('"roce-100g"', '"roce-100g"\nrate-control = "dcqcn-paper"\ndcqcn-gain-shift = 31'),
        "device.dcqcn-gain-shift",
        "less than or equal to 30",
    ),
    (('"roce-100g"', '"roce-100g"\nengines = "shared"'), "device.request-fetch", "the device is in software"),
    (("connections = 4", 'connections = 4\ncalls = "single"'), "workload.0.calls", "one request at a time"),
    (
        ('name = "get"', 'name = "get"\nkind = "datagrams"\ndepth = 2\ncalls = "single"'),
        "workload.0.calls",
        "each message of datagrams has its call",
    ),
    (("connections = 4", "connections = 0"), "workload.0.connections", "greater than or equal to 1"),
    (("connections = 4", 'connections = 4\nrate = "1k/s"'), "workload.0.rate", "has no effect"),
    (("connections = 4", 'connections = 4\narrival = "open"'), "workload.0.rate", "is missing"),
    (('response = "1KiB"\n', ""), "workload.0.response", "is missing"),
    (('response = "1KiB"', 'response = "0B"'), "workload.0", "at least 1"),
    (('duration = "1ms"\n', ""), "measure.duration", "is missing"),
    (("seeds = [1, 2]", "seeds = []"), "measure.seeds", "at least 1"),
    (
        ("[measure]", "[stack.nacc]\nNACC_SOR_CONN_PER_QP = -1\n[measure]"),
        "NACC_SOR_CONN_PER_QP",
        "equal to 0",
    ),
    (("[measure]", "[stack.nacc]\nNACC_LOG_LEVEL = 3\n[measure]"), "NACC_LOG_LEVEL", "NACC_RING_SIZE"),
    # Bounds are those of the library, which takes less than 64 MiB, and powers of two only.
    (("[measure]", "[stack.nacc]\nNACC_RING_SIZE = 67108864\n[measure]"), "NACC_RING_SIZE", "4194304"),
    (("[measure]", "[stack.nacc]\nNACC_RING_SIZE = 5000\n[measure]"), "NACC_RING_SIZE", "a power of two"),
    (
        ('name = "get"', 'name = "get"\nrequests-per-connection = 2'),
        "workload.0.requests-per-connection",
        "connections of request-response last",
    ),
    (
        ('name = "get"', 'name = "get"\nkind = "short-connections"\ndepth = 2'),
        "workload.0.depth",
        "has no effect",
    ),
    (
        ('response = "1KiB"', 'kind = "short-connections"'),
        "workload.0.response",
        "is missing: short-connections needs it",
    ),
    (
        ("[measure]", '[stack]\nanchor = "memory"\nnacc.NACC_PROMOTE_AFTER = 1\n[measure]'),
        "NACC_PROMOTE_AFTER",
        "talk on links only",
    ),
    (('name = "get"', 'name = "get"\nservice = "1us"'), "workload.0.service", "calls on free processors"),
    (
        ("[measure]", '[stack]\nkind = "gazelle-like"\n[measure]'),
        "host.profile",
        "there are free, g8ae-4xlarge",
    ),
    (("[measure]", "[host]\nserver-threads = 2\n[measure]"), "host.server-threads", "has no effect"),
    (("[measure]", "[host]\nwork-factor = 2.0\n[measure]"), "host.work-factor", "has no effect"),
    (
        ('request = "64B"', 'kind = "datagrams"\nrequest = "1473B"'),
        "workload.0",
        "at most 1472 fit into a packet",
    ),
    (
        ('response = "1KiB"', 'kind = "datagrams"\ndepth = 2'),
        "workload.0.depth",
        "has no effect",
    ),
    (("[measure]", '[stack]\nanchor = "memory"\ntcp-mtu = "9000B"\n[measure]'), "stack.tcp-mtu", "in memory"),
    (
        ("[measure]", '[stack]\nkind = "kernel-tcp"\nanchor = "tcp"\n[measure]'),
        "stack.anchor",
        "nothing is promoted",
    ),
    (
        ('"roce-100g"', '"roce-100g"\nmtu = "1KiB"\n[stack]\nkind = "kernel-tcp"'),
        "device.mtu",
        "use no RDMA",
    ),
    (
        ("[measure]", '[[fault]]\nkind = "cut"\nat = "1us"\ntarget = "spine:0"\n[measure]'),
        "fault.0",
        "there are 0",
    ),
    (
        ("[measure]", '[[fault]]\nkind = "loss"\nat = "1us"\ntarget = "host:0"\n[measure]'),
        "fault.0.loss",
        "missing",
    ),
]


@pytest.mark.parametrize(("change", "key", "allowed"), WRONG, ids=[f"{c[1]!r}" for c, _, _ in WRONG])
def test_errors_name_the_key_and_the_allowed_values(
    write: Write, change: tuple[str, str], key: str, allowed: str
) -> None:
    """Breaks if an invalid scenario would run, or its message lacks file, key or allowed values."""
    file = write(change)
    with pytest.raises(ScenarioError) as caught:
        runs(file)
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert key in message
    assert allowed in message


def test_a_sweep_is_checked_before_it_runs(write: Write) -> None:
    """Breaks if a sweep begins though one of its points is not valid."""
    file = write()
    with pytest.raises(ScenarioError, match=r"topology\.delay"):
        runs(file, sweep={"topology.delay": ["1us", "2 weeks"]})
    with pytest.raises(ScenarioError, match="there is no 3 among 1"):
        runs(file, sweep={"workload.3.connections": [1]})
    with pytest.raises(ScenarioError, match="no such key"):
        runs(file, sweep={"topology.lenght": [1]})
    assert len(runs(file, sweep={"topology.delay": ["1us", "2us"], "workload.0.connections": [2, 4]})) == 8


@pytest.mark.parametrize("table", ["device", "switch"])
def test_declared_parameters_reach_the_resolved_form(write: Write, table: str) -> None:
    """Breaks if a parameter that a model declares cannot be set, or its value gets lost."""
    key = {"device": "device", "switch": "topology.switch"}[table]
    other = {
        "count": 77,
        "rate": "90kbit/s",
        "factor": 0.25,
        "time": "400us",
        "size": "90kB",
        "share": "77ppm",
    }
    for each in declared.TABLES[table]:
        if each.name in ("rate-control", "window"):
            continue
        value = other.get(each.unit, each.choices[-1] if each.choices else not each.default)
        if each.greatest and each.unit == "count":
            value = min(77, each.greatest)
        others: dict[str, list[Any]] = {}
        if each.section in USERS:
            others = {"device.rate-control": [USERS[each.section][0]], "topology.switch.ecn": [True]}
        if each.name == "engines":
            # The last choice is a device in software, which has no bus.
            others = {"device.profile": ["ideal"]}
        resolved = runs(write(), sweep={f"{key}.{each.name}": [value], **others})[0].resolved
        objects = {**resolved["device"], "switch": resolved["network"]["switch"]}
        expected = {"time": 400_000, "size": 90_000, "rate": 90_000, "share": 77}.get(each.unit, value)
        assert objects[each.section][each.key] == expected, each.name


def test_keys_can_be_unset(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if a key that is unset keeps its value or its sweep, or a key that is not there is accepted."""
    file = write(("[measure]", '[sweep]\n"topology.delay" = ["1us", "2us"]\n[measure]'))
    assert len(runs(file)) == 4
    # Two hosts of clients need two connections, so they go as well.
    with pytest.raises(ScenarioError, match="1 are fewer than 2 clients"):
        runs(file, unset=["workload.0.connections"])
    one = [{"client": 1, "server": 0, "connections": 1}]
    found = runs(file, sweep={"workload.0.clients": [1]}, unset=["topology.delay", "workload.0.connections"])
    assert [run.resolved["network"]["links"][0]["delay_ns"] for run in found] == [500, 500]
    assert found[0].resolved["groups"][0]["clients"] == one
    for key in ("topology.lenght", "workload.1.connections", "stack.kind"):
        with pytest.raises(ScenarioError, match=f"{key}: cannot be unset"):
            runs(file, unset=[key])
    arguments = ["sweep", str(file), "--dry-run", "--unset", "topology.delay"]
    changed = ["--set", "workload.0.connections=2", "--unset", "workload.0.depth"]
    assert main([*arguments, "--set", "workload.0.connections=2"]) == 0
    assert capsys.readouterr().out.startswith("2 runs")
    assert main([*arguments, *changed]) == 2
    assert main([*arguments, "--set", "topology.delay=1us"]) == 2
    assert "is given to --set, too" in capsys.readouterr().err


GRAPH = """kind = "graph"
hosts = 3
switches = 2
link = [
    { ends = ["host:0", "switch:0"] },
    { ends = ["host:1", "switch:1"] },
    { ends = ["switch:1", "host:2"], delay = "3us" },
    { ends = ["switch:0", "switch:1"], rate = "1Gbit/s", loss = "1%" },
]
"""


def test_a_graph_is_as_it_is_given(write: Write) -> None:
    """Breaks if a link of a graph gets lost, or other properties than its own or the topology's."""
    file = write(('kind = "star"\nhosts = 3\n', GRAPH))
    network = runs(file)[0].resolved["network"]
    usual = {"rate_bps": 25 * 10**9, "delay_ns": 1000, "loss_ppm": 0}
    assert (network["hosts"], network["switches"]) == (3, 2)
    assert network["links"] == [
        {"a": 0, "b": 3, **usual},
        {"a": 1, "b": 4, **usual},
        {"a": 4, "b": 2, **usual, "delay_ns": 3000},
        {"a": 3, "b": 4, **usual, "rate_bps": 10**9, "loss_ppm": 10_000},
    ]


@pytest.mark.parametrize(
    ("change", "key", "message"),
    [
        (("switch:0", "switch:2"), "topology.link.0", "there is no switch:2: the last is switch:1"),
        (('"switch:0", "switch:1"', '"switch:0", "switch:0"'), "topology.link.3", "with itself"),
        (('"host:1", "switch:1"', '"host:1", "host:2"'), "topology.link.1", "leads to a switch"),
        (
            ('"host:1", "switch:1"', '"host:0", "switch:0"'),
            "topology.link.1",
            "the same two as topology.link.0",
        ),
        (('"host:1", "switch:1"', '"host:0", "switch:1"'), "topology.link", "host:0 has 2 links"),
        (("hosts = 3", "hosts = 4"), "topology.link", "host:3 has 0 links"),
        (("switches = 2", "switches = 3"), "topology.link", "nothing leads from host:0 to switch:2"),
        (("switches = 2\n", ""), "topology.switches", "is missing: graph needs it"),
        (("hosts = 3", 'hosts = 3\nplacement = "spread"'), "topology.placement", "has no effect on graph"),
        (('"host:0"', '"rack:0"'), "topology.link.0.ends", "should match pattern"),
    ],
)
def test_wrong_graphs_are_refused(write: Write, change: tuple[str, str], key: str, message: str) -> None:
    """Breaks if a graph that no network can be is accepted, or its message names another link."""
    assert change[0] in GRAPH
    file = write(('kind = "star"\nhosts = 3\n', GRAPH.replace(*change, 1)))
    with pytest.raises(ScenarioError) as caught:
        runs(file)
    assert f"{key}" in str(caught.value) and message in str(caught.value), caught.value


def flow_scenario(write: Write, text: str, *changes: tuple[str, str]) -> Path:
    """The small scenario with flows in place of its workload."""
    old = 'clients = 2\nconnections = 4\nrequest = "64B"\nresponse = "1KiB"'
    memory = ("[measure]", '[stack]\nanchor = "memory"\n\n[measure]')
    file = write((old, 'kind = "flows"\nflows = "flow.txt"'), memory, *changes)
    (file.parent / "flow.txt").write_text(text)
    return file


def test_flows_are_those_of_the_file(write: Write) -> None:
    """Breaks if a flow has other ends, bytes or another time than its line, or the first is late."""
    file = flow_scenario(write, "2\n0 1 3 100 5000 2.0001\n2 1 3 100 70000 2.000000\n")
    (group,) = runs(file)[0].resolved["groups"]
    assert [(c["client"], c["server"]) for c in group["clients"]] == [(2, 1), (0, 1)]
    assert group["arrival"]["flows"] == [(100_000, 70_000), (200_000, 5_000)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1 3 100 5000 2.0\n", "line 1: is not the number of flows"),
        ("2\n0 1 3 100 5000 2.0\n", "2 flows, but 1 lines"),
        ("1\n0 1 3 5000 2.0\n", "flow 0: has 5 fields"),
        ("1\n0 1 3 100 many 2.0\n", "is no number"),
        ("1\n0 3 3 100 5000 2.0\n", "from host 0 to host 3: two of 0 to 2"),
        ("1\n1 1 3 100 5000 2.0\n", "from host 1 to host 1"),
        ("1\n0 1 3 100 0 2.0\n", "has 0 bytes"),
        ("1\n0 1 3 100 1 nan\n", "starts at nan"),
        ("2\n0 1 3 100 1 2.0\n0 1 3 100 1 2.001\n", "ends before the last flow starts, 1000000ns"),
    ],
)
def test_wrong_flows_are_refused(write: Write, text: str, message: str) -> None:
    """Breaks if a line that is no flow is accepted, or the message does not say which."""
    with pytest.raises(ScenarioError) as caught:
        runs(flow_scenario(write, text))
    assert message in str(caught.value)


def test_keys_that_flows_do_not_use_are_refused(write: Write) -> None:
    """Breaks if a key without effect on flows is accepted, or flows that would go over TCP are."""
    text = "1\n0 1 3 100 5000 2.0\n"
    for change, message in (
        (('"flow.txt"', '"flow.txt"\nclients = 2'), "workload.0.clients: has no effect"),
        (('anchor = "memory"', 'anchor = "tcp"'), "stack.anchor: must be memory"),
        (('flows = "flow.txt"', ""), "workload.0.flows: is missing"),
    ):
        with pytest.raises(ScenarioError, match=message):
            runs(flow_scenario(write, text, change))
    with pytest.raises(ScenarioError, match=r"workload.0.clients: is missing"):
        runs(write(("clients = 2\n", "")))


VARYING: list[tuple[object, object]] = [
    ("1.5us", 1500),
    ({"exponential": "2us"}, {"exponential": 2000}),
    ({"lognormal": {"median": "2us", "deviation": 0.3}}, {"lognormal": [2000, 300_000]}),
    ({"histogram": [{"share": 3, "min": "1us", "max": "2us"}]}, {"histogram": [[3, 1000, 2000]]}),
    (
        {"mixture": [{"share": 9, "of": "1us"}, {"share": 1, "of": {"exponential": "50us"}}]},
        {"mixture": [[9, 1000], [1, {"exponential": 50_000}]]},
    ),
]
WRONG_COSTS: list[tuple[object, str]] = [
    (350, "a time: a number and one of"),
    ({"uniform": "1us"}, "there are exponential, lognormal, histogram, mixture"),
    ({"lognormal": {"median": "1us"}}, "is not a table of median, deviation"),
    ({"lognormal": {"median": "1us", "deviation": -1}}, "is not a number from 0 to 10"),
    ({"histogram": []}, "of which one has a share"),
    ({"histogram": [{"share": 0, "min": "1us", "max": "2us"}]}, "of which one has a share"),
    ({"histogram": [{"share": 1, "min": "3us", "max": "2us"}]}, "is more than max"),
]


@pytest.mark.parametrize(("written", "resolved"), VARYING)
def test_costs_may_vary(write: Write, written: object, resolved: object) -> None:
    """Breaks if a distribution is read as another one, or the published schema refuses it."""
    file = write(("[measure]", '[host]\nprofile = "two-cores"\n[measure]'))
    (run, *_) = runs(file, sweep={"stack.system-call": [written]})
    assert run.resolved["processors"]["costs"]["system_call_ns"] == resolved
    published = json.loads((paths.scenarios_folder() / "schema.json").read_text())
    jsonschema.validate(read(file) | {"stack": {"system-call": written}}, published)


@pytest.mark.parametrize(("written", "allowed"), WRONG_COSTS)
def test_wrong_costs_are_refused(write: Write, written: object, allowed: str) -> None:
    """Breaks if a distribution that makes no sense is accepted."""
    file = write(("[measure]", '[host]\nprofile = "two-cores"\n[measure]'))
    with pytest.raises(ScenarioError) as caught:
        runs(file, sweep={"stack.system-call": [written]})
    assert "stack.system-call" in str(caught.value)
    assert allowed in str(caught.value)


def test_profiles_may_be_files(write: Write, tmp_path: Path) -> None:
    """Breaks if a profile beside the scenario is not found, or its values are not taken."""
    text = (paths.profiles_folder() / "kernel-tcp.toml").read_text()
    (tmp_path / "mine.toml").write_text(
        text.replace('wake-up = { value = "3us"', 'wake-up = { value = "7us"')
    )
    stack = '[host]\nprofile = "two-cores"\n[stack]\nkind = "kernel-tcp"\nprofile = "mine.toml"\n[measure]'
    (run, *_) = runs(write(("[measure]", stack)))
    assert run.resolved["processors"]["costs"]["wake_up_ns"] == 7000
    assert run.profiles["stack"] == "mine.toml"


def test_files_on_the_command_line_are_of_the_working_folder(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if a profile named by --set is looked for beside the scenario."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.toml").write_text((paths.profiles_folder() / "kernel-tcp.toml").read_text())
    scenario = write(("[measure]", '[host]\nprofile = "two-cores"\n[stack]\nkind = "kernel-tcp"\n[measure]'))
    monkeypatch.chdir(elsewhere)
    settings = ["--set", "stack.profile=mine.toml", "--set", "stack.system-call=100ns,200ns"]
    assert main(["run", str(scenario), "--dry-run", *settings]) == 0
    assert capsys.readouterr().out.startswith("4 runs")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"kind = ", b'kind = "stack"\n', None])
def test_bad_profiles_are_refused(write: Write, tmp_path: Path, content: bytes | None) -> None:
    """Breaks if a file that is no profile ends in a trace, or its name is not in the message."""
    bad = tmp_path / "bad.toml"
    bad.mkdir() if content is None else bad.write_bytes(content)
    stack = '[host]\nprofile = "two-cores"\n[stack]\nkind = "kernel-tcp"\nprofile = "bad.toml"\n[measure]'
    with pytest.raises(ScenarioError) as caught:
        runs(write(("[measure]", stack)))
    assert all(line.startswith(str(bad)) for line in str(caught.value).splitlines())


def test_units() -> None:
    """Breaks if a unit is worth something else."""
    assert units.parse("1.5us", "", units.TIME) == 1500
    assert units.parse("64 KiB", "", units.SIZE) == 65536
    assert units.parse("0.1%", "", units.SHARE) == 1000
    assert units.parse("25Gbit/s", "", units.RATE) == 25 * 10**9
    assert units.parse("0.5/s", "", units.FREQUENCY) == 500


def test_topologies() -> None:
    """Breaks if a fabric has other links than it should, or placement puts hosts elsewhere."""
    tree = build(Topology.model_validate({"kind": "fat-tree", "k": 4}), "-")
    assert (tree.hosts, tree.switches, len(tree.links)) == (16, 20, 48)
    assert tree.in_order(Placement.SAME_RACK) == [0, 1]
    assert tree.in_order(Placement.LOW_LATENCY_SET) == [0, 2, 1, 3]
    assert tree.in_order(Placement.SPREAD)[:5] == [0, 4, 8, 12, 2]
    two = {"kind": "leaf-spine", "racks": 3, "hosts-per-rack": 4, "spines": 2, "rate": "10Gbit/s"}
    tiers = build(Topology.model_validate(two | {"oversubscription": 2.0}), "-")
    assert (tiers.hosts, tiers.switches, len(tiers.links)) == (12, 5, 18)
    # Four hosts of 10 Gbit/s over two uplinks: half of the rate that they need.
    assert {link.rate_bps for link in tiers.links[12:]} == {10 * 10**9}
    assert tiers.in_order(Placement.SPREAD)[:4] == [0, 4, 8, 1]


def test_faults_are_of_the_right_links(write: Write) -> None:
    """Breaks if a fault hits other links, is not repaired, or switches learn of it at another time."""
    fault = '[[fault]]\nkind = "cut"\nat = "10us"\nuntil = "20us"\ntarget = "host:0"\nreroute-after = "3us"\n'
    found = runs(write(("[measure]", fault + "[measure]")))[0].resolved["faults"]
    assert [(f["at_ns"], f["loss_ppm"], f["reroute"]) for f in found] == [
        (10_000, 10**6, False),
        (13_000, 10**6, True),
        (20_000, 0, False),
        (23_000, 0, True),
    ]
    # The server is the first host.
    assert {f["link"] for f in found} == {0}


@pytest.mark.parametrize("kind", ["device", "host", "stack"])
def test_profiles_are_valid(kind: str) -> None:
    """Breaks if a profile has a wrong value, or a value without its source."""
    names = profiles.names(kind)
    assert names
    for name in names:
        profile = profiles.load(kind, name, "-")
        assert all(len(sourced.source) > 5 for sourced in profile.values.values())
        if kind == "device":
            profiles.device(name, Scenario.model_fields["device"].default, "-")
    assert resolve.FORMAT == 6


def _two(parameter: declared.Parameter) -> tuple[list[object], list[object]]:
    """Two values of a parameter as a scenario writes them, and in the resolved form."""
    if parameter.unit == "distribution":
        return ["5us", {"exponential": "7us"}], [5_000, {"exponential": 7_000}]
    if parameter.unit == "switch":
        return [False, True], [False, True]
    if parameter.unit == "count":
        return [5, 7], [5, 7]
    unit, factor = {"time": ("us", 1000), "size": ("KiB", 1024)}[parameter.unit]
    return [f"5{unit}", f"7{unit}"], [5 * factor, 7 * factor]


@pytest.mark.parametrize("parameter", declared.TABLES["stack"], ids=lambda each: each.name)
def test_each_cost_can_be_set_and_swept(write: Write, parameter: declared.Parameter) -> None:
    """Breaks if a value of a stack cannot be set by its key, varied in a study, or changes nothing."""
    file = write(("[measure]", '[host]\nprofile = "two-cores"\n[measure]'))
    written, expected = _two(parameter)
    swept = resolve.runs(file, sweep={f"stack.{parameter.name}": written}, seeds=[1])
    assert [each.resolved["processors"]["costs"][parameter.key] for each in swept] == expected
    (unswept,) = resolve.runs(file, seeds=[1])
    others = {**unswept.resolved["processors"]["costs"], parameter.key: expected[0]}
    assert swept[0].resolved["processors"]["costs"] == others, "nothing else changes"
    if parameter.name in OF_A_HOST:
        with pytest.raises(ScenarioError, match="no such key"):
            resolve.runs(file, sweep={f"workload.0.costs.{parameter.name}": written}, seeds=[1])
    else:
        own = resolve.runs(file, sweep={f"workload.0.costs.{parameter.name}": written}, seeds=[1])
        assert [each.resolved["groups"][0]["costs"][parameter.key] for each in own] == expected


def test_each_value_of_a_host_can_be_set_and_swept(write: Write) -> None:
    """Breaks if a value of a host's profile has no key, or the key changes nothing."""
    values: dict[str, list[Any]] = {"cores": [3, 5], "work-factor": [2.0, 3.0], "free": [False, True]}
    assert set(values) == {field.alias for field in profiles.HostValues.model_fields.values()}
    file = write(("[measure]", '[host]\nprofile = "two-cores"\n[measure]'))
    for key, two in values.items():
        swept = resolve.runs(file, sweep={f"host.{key}": two}, seeds=[1])
        assert swept[0].resolved["processors"] != swept[1].resolved["processors"], key
    assert swept[1].resolved["processors"] is None


def test_a_workload_has_costs_of_its_own(write: Write, tmp_path: Path) -> None:
    """Breaks if a cost of one workload is lost, gets into the other, or is accepted where calls are free."""
    get = 'request = "64B"\nresponse = "1KiB"\n'
    other = (
        f'[[workload]]\nname = "other"\nclients = 1\n{get}[workload.costs]\nsystem-call = "9us"\n[measure]'
    )
    hosts = '[host]\nprofile = "two-cores"\n[stack]\nkind = "kernel-tcp"\nsegment = "3us"\n'
    (found, *_) = resolve.runs(write(("[measure]", hosts + other)))
    first, second = found.resolved["groups"]
    whole = found.resolved["processors"]["costs"]
    assert first["costs"] is None and whole["segment_ns"] == 3_000
    assert second["costs"] == {**whole, "system_call_ns": 9_000}
    profile = (paths.profiles_folder() / "kernel-tcp.toml").read_text().replace('"652ns"', '"777ns"')
    (tmp_path / "mine.toml").write_text(profile)
    named = other.replace("[workload.costs]", 'costs-profile = "mine.toml"\n[workload.costs]')
    (found, *_) = resolve.runs(write(("[measure]", hosts + named)))
    second = found.resolved["groups"][1]["costs"]
    assert (second["segment_ns"], second["system_call_ns"]) == (777, 9_000)
    with pytest.raises(ScenarioError, match=r"workload\.1\.costs: has no effect"):
        resolve.runs(write(("[measure]", other)))


@pytest.mark.parametrize(
    ("host", "loops"),
    [
        ("", ("batches", "deferred")),
        ('server-loop = "rounds"', ("rounds", "rounds")),
        ('client-loop = "turns"', ("batches", "turns")),
    ],
)
def test_redis_and_its_client_have_their_loops(write: Write, host: str, loops: tuple[str, str]) -> None:
    """Breaks if redis-benchmark wrote as Redis does, or a loop that is given were ignored."""
    file = write(
        ('[device]\nprofile = "roce-100g"', f'[host]\nprofile = "g8ae-4xlarge"\n{host}'),
        ('request = "64B"\nresponse = "1KiB"', 'kind = "redis-like"'),
    )
    (run,) = resolve.runs(file, seeds=[1])
    processors = run.resolved["processors"]
    assert (processors["server_loop"], processors["client_loop"]) == loops
