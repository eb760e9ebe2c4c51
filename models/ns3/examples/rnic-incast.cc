/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

// Many senders, one receiver, on a star or on leaves and spines: the time it takes, the packets dropped, marked and sent again, and
// how fast the simulation is. One line of JSON; attributes that have no name here are given as ns-3 takes them
// (--ns3::RnicPort::DataRate=8Gbps).

#include "example-network.h"

#include "ns3/boolean.h"
#include "ns3/command-line.h"
#include "ns3/enum.h"
#include "ns3/string.h"
#include "ns3/uinteger.h"

#include <iostream>
#include <sstream>

using namespace ns3;

int
main(int argc, char* argv[])
{
    uint32_t senders = 16;
    uint32_t leaves = 0;
    uint32_t spines = 4;
    uint32_t bytes = 1000000;
    uint32_t flows = 1;
    uint64_t seed = 1;
    bool pfc = false;
    bool ends = false;
    bool permutation = false;
    CommandLine cmd(__FILE__);
    cmd.AddValue("senders", "Nodes that send", senders);
    cmd.AddValue("leaves", "Leaf switches; 0 for one switch", leaves);
    cmd.AddValue("spines", "Spine switches", spines);
    cmd.AddValue("bytes", "Bytes of each message", bytes);
    cmd.AddValue("flows", "Messages of each sender, each on a queue pair of its own", flows);
    cmd.AddValue("seed", "What is lost, marked, and which path a flow takes", seed);
    cmd.AddValue("pfc", "Priority flow control", pfc);
    cmd.AddValue("permutation", "Each node sends to the one half the network away, instead of all to one", permutation);
    cmd.AddValue("ends", "Tell when each message was delivered, in nanoseconds (0: it was not)", ends);
    cmd.AddValue("rate", "ns3::RnicFleet::RateControl");
    cmd.AddValue("recovery", "ns3::RnicFleet::Recovery");
    cmd.AddValue("mtu", "ns3::RnicFleet::MtuBytes");
    cmd.AddValue("acks", "ns3::RnicFleet::AckInterval");
    cmd.AddValue("timeout", "ns3::RnicFleet::RetryTimeout");
    cmd.AddValue("retries", "ns3::RnicFleet::RetryCount");
    cmd.AddValue("loss", "ns3::RnicPort::LossPpm");
    cmd.AddValue("buffer", "ns3::RnicSwitch::PortBufferBytes");
    cmd.AddValue("ecn", "ns3::RnicSwitch::Ecn");
    cmd.Parse(argc, argv);

    example::PrepareSimulator();
    uint32_t count = example::RoundUp(permutation ? senders : senders + 1, leaves);
    Ptr<RnicFleet> fleet = CreateObject<RnicFleet>();
    for (uint32_t i = 0; i < senders; i++)
    {
        for (uint32_t each = 0; each < flows; each++)
        {
            fleet->AddFlow(i, permutation ? (i + count / 2) % count : count - 1, bytes, NanoSeconds(0));
        }
    }
    RnicHelper helper;
    helper.SetSeed(seed);
    helper.SetSwitchAttribute("Pfc", BooleanValue(pfc));
    NodeContainer nodes(count);
    example::Install(helper, nodes, leaves, spines, fleet);
    helper.Start();
    double wall = example::Run();

    netacc::Fleet& model = fleet->GetModel();
    uint32_t delivered = 0;
    uint64_t last = 0;
    uint64_t repeated = 0;
    std::ostringstream times;
    for (uint32_t i = 0; i < senders * flows; i++)
    {
        netacc::FlowResult result = model.result(i);
        bool arrived = result.state == netacc::FlowState::Delivered;
        delivered += arrived ? 1 : 0;
        last = std::max(last, result.end_ns);
        times << (i == 0 ? "" : ", ") << (arrived ? result.end_ns : 0);
    }
    for (uint32_t i = 0; i < senders; i++)
    {
        repeated += model.counters(i).data_repeated;
    }
    uint64_t dropped = 0;
    uint64_t marked = 0;
    uint64_t pauses = 0;
    for (const auto& device : helper.GetSwitches())
    {
        dropped += device->GetDropped();
        marked += device->GetMarked();
        pauses += device->GetPauses();
    }
    uint64_t events = Simulator::GetEventCount();
    std::cout << "{\"nodes\": " << count << ", \"flows\": " << senders * flows << ", \"delivered\": " << delivered
              << ", \"last_us\": " << static_cast<double>(last) / 1000 << ", \"dropped\": " << dropped
              << ", \"marked\": " << marked << ", \"pauses\": " << pauses << ", \"repeated\": " << repeated
              << ", \"frames\": " << model.deliveries() << ", \"events\": " << events << ", \"wall_s\": " << wall
              << ", \"events_per_s\": " << static_cast<double>(events) / wall
              << ", \"frames_per_s\": " << static_cast<double>(model.deliveries()) / wall << ", \"trace\": \""
              << std::hex << model.trace_hash() << "\"";
    if (ends)
    {
        std::cout << ", \"ends_ns\": [" << times.str() << "]";
    }
    std::cout << "}" << std::endl;
    Simulator::Destroy();
    // The exit code reports failed flows.
    return delivered == senders * flows ? 0 : 1;
}
