/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

// Clients that ask one server, or all nodes that ask each other, over the production core, on a star or on leaves and spines: how
// long answers take, how fast the simulation is, and what memory it takes. One line of JSON.

#include "example-network.h"

#include "ns3/boolean.h"
#include "ns3/command-line.h"
#include "ns3/enum.h"
#include "ns3/rnic-tcp.h"
#include "ns3/uinteger.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <sys/resource.h>

using namespace ns3;

/// \return the resources that the process has used so far
static struct rusage
Usage()
{
    struct rusage usage = {};
    getrusage(RUSAGE_SELF, &usage);
    return usage;
}

/**
 * \param usage of a process
 * \return seconds of a processor, the kernel's for it included
 */
static double
ProcessorSeconds(const struct rusage& usage)
{
    auto seconds = [](timeval t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6; };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int
main(int argc, char* argv[])
{
    uint32_t hosts = 8;
    uint32_t connections = 64;
    uint32_t requestBytes = 64;
    uint32_t responseBytes = 1024;
    uint32_t count = 100;
    uint32_t leaves = 0;
    uint32_t spines = 2;
    bool mesh = false;
    uint64_t seed = 1;
    double stop = 10;
    CommandLine cmd(__FILE__);
    cmd.AddValue("hosts", "Nodes with clients", hosts);
    cmd.AddValue("connections", "Connections in all, spread over the nodes", connections);
    cmd.AddValue("request", "Bytes of a request", requestBytes);
    cmd.AddValue("response", "Bytes of a response", responseBytes);
    cmd.AddValue("count", "Requests of each connection", count);
    cmd.AddValue("leaves", "Leaf switches; 0 for one switch", leaves);
    cmd.AddValue("spines", "Spine switches", spines);
    cmd.AddValue("mesh", "Every node asks others, in turn; else all ask one more node", mesh);
    cmd.AddValue("seed", "What is lost, marked, and which path a flow takes", seed);
    cmd.AddValue("stop", "Simulated seconds after which what is not answered counts as failed", stop);
    cmd.AddValue("sharing", "ns3::RnicFleet::StreamsPerLink");
    cmd.AddValue("tcp", "ns3::RnicFleet::TcpBufferBytes");
    cmd.AddValue("promote", "ns3::RnicFleet::Promote");
    cmd.AddValue("ring", "ns3::RnicFleet::RingBytes");
    cmd.AddValue("rate", "ns3::RnicFleet::RateControl");
    cmd.AddValue("recovery", "ns3::RnicFleet::Recovery");
    cmd.AddValue("mtu", "ns3::RnicFleet::MtuBytes");
    cmd.AddValue("timeout", "ns3::RnicFleet::RetryTimeout");
    cmd.AddValue("contexts", "ns3::RnicFleet::ContextCache");
    cmd.AddValue("miss", "ns3::RnicFleet::ContextMiss");
    cmd.AddValue("loss", "ns3::RnicPort::LossPpm");
    cmd.AddValue("buffer", "ns3::RnicSwitch::PortBufferBytes");
    cmd.Parse(argc, argv);
    NS_ABORT_MSG_IF(hosts == 0 || count == 0, "there is at least one client and one request");

    example::PrepareSimulator();
    uint32_t nodeCount = example::RoundUp(mesh ? hosts : hosts + 1, leaves);
    NS_ABORT_MSG_IF(nodeCount < 2, "at least two hosts are needed");
    auto begun = std::chrono::steady_clock::now();
    Ptr<RnicFleet> fleet = CreateObject<RnicFleet>();
    for (uint32_t i = 0; i < connections; i++)
    {
        uint32_t client = i % hosts;
        // The other nodes in turn, at distances that differ much.
        uint32_t distance = 1 + i / hosts * 37 % (nodeCount - 1);
        uint32_t server = mesh ? (client + distance) % nodeCount : nodeCount - 1;
        fleet->AddConversation(client, server, requestBytes, responseBytes, count);
    }
    RnicHelper helper;
    helper.SetSeed(seed);
    NodeContainer nodes(nodeCount);
    example::Install(helper, nodes, leaves, spines, fleet);
    Ptr<RnicTcp> tcp = CreateObject<RnicTcp>();
    if (fleet->GetModel().tcp_buffer_bytes() > 0)
    {
        tcp->Install(nodes, helper.GetDevices(), fleet);
    }
    helper.Start();
    Simulator::Stop(Seconds(stop));
    std::chrono::duration<double> prepared = std::chrono::steady_clock::now() - begun;
    struct rusage before = Usage();
    double wall = example::Run();
    struct rusage after = Usage();
    double processor = ProcessorSeconds(after) - ProcessorSeconds(before);

    netacc::Fleet& model = fleet->GetModel();
    uint64_t answered = 0;
    std::vector<uint64_t> medians;
    uint64_t most = 0;
    for (uint32_t i = 0; i < connections; i++)
    {
        netacc::ConversationResult result = model.conversation(i);
        answered += result.answered;
        most = std::max(most, result.max_ns);
        medians.push_back(result.median_ns);
    }
    std::sort(medians.begin(), medians.end());
    uint64_t misses = 0;
    uint64_t repeated = 0;
    for (uint32_t i = 0; i < nodeCount; i++)
    {
        misses += model.counters(i).context_misses;
        repeated += model.counters(i).data_repeated;
    }
    uint64_t requests = uint64_t{connections} * count;
    uint64_t events = Simulator::GetEventCount();
    std::cout << "{\"nodes\": " << nodeCount << ", \"connections\": " << connections << ", \"asked\": " << requests
              << ", \"answered\": " << answered << ", \"median_us\": "
              << (medians.empty() ? 0.0 : static_cast<double>(medians[medians.size() / 2]) / 1000)
              << ", \"max_us\": " << static_cast<double>(most) / 1000 << ", \"context_misses\": " << misses
              << ", \"repeated\": " << repeated << ", \"frames\": " << model.deliveries() << ", \"events\": " << events
              << ", \"peak_kib\": " << after.ru_maxrss << ", \"prepare_s\": " << prepared.count()
              << ", \"wall_s\": " << wall << ", \"processor_s\": " << processor
              << ", \"events_per_s\": " << static_cast<double>(events) / wall << ", \"trace\": \"" << std::hex
              << model.trace_hash() << "\"}" << std::endl;
    Simulator::Destroy();
    // The exit code reports requests without an answer.
    return answered == requests ? 0 : 1;
}
