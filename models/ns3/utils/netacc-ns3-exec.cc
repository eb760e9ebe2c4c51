/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

// The executor "ns3": runs programs of socket operations (tests/program) with the production core on modelled NICs in this
// network. A line of standard input is a request, a line of standard output its answer: sim/ns3/src/program.rs. Programs of datagram
// calls come in several lines: sim/ns3/src/datagrams.rs.

#include "ns3/global-value.h"
#include "ns3/node-container.h"
#include "ns3/rnic-stepper.h"
#include "ns3/rnic-tcp.h"
#include "ns3/rnic-udp.h"
#include "ns3/simulator.h"
#include "ns3/string.h"
#include "ns3/uinteger.h"

#include <iostream>
#include <string>

using namespace ns3;

/**
 * \param network what a program wants
 * \return a helper for links and a switch like that
 */
static RnicHelper
MakeHelper(const netacc::ProgramNetwork& network)
{
    RnicHelper helper;
    helper.SetSeed(network.seed);
    helper.SetPortAttribute("DataRate", DataRateValue(DataRate(network.rate_bps)));
    helper.SetPortAttribute("Delay", TimeValue(NanoSeconds(network.delay_ns)));
    helper.SetPortAttribute("LossPpm", UintegerValue(network.loss_ppm));
    helper.SetPortAttribute("DuplicatePpm", UintegerValue(network.duplicate_ppm));
    helper.SetPortAttribute("ReorderPpm", UintegerValue(network.reorder_ppm));
    helper.SetPortAttribute("ReorderDelay", TimeValue(NanoSeconds(network.reorder_delay_ns)));
    helper.SetSwitchAttribute("PortBufferBytes", UintegerValue(network.buffer_bytes));
    return helper;
}

/**
 * \param request a line of JSON
 * \return another one; throws what is wrong with the request
 */
static std::string
Answer(const std::string& request)
{
    rust::Box<netacc::ProgramRun> program = netacc::new_program_run(request);
    netacc::ProgramNetwork network = program->network();
    RnicHelper helper = MakeHelper(network);
    Ptr<RnicFleet> fleet = CreateObject<RnicFleet>();
    fleet->Adopt(program->fleet());
    NodeContainer nodes(network.hosts);
    helper.InstallStar(nodes, fleet);
    Ptr<RnicTcp> tcp = CreateObject<RnicTcp>();
    if (fleet->GetModel().tcp_buffer_bytes() > 0)
    {
        tcp->Install(nodes, helper.GetDevices(), fleet);
    }
    helper.Start();
    rust::String answer = program->run(std::make_unique<RnicStepper>(helper));
    Simulator::Destroy();
    return std::string(answer);
}

/**
 * Carries out a program of datagram calls, whose orders are lines of standard input. Throws what is wrong with one.
 * \param request a line of JSON
 */
static void
RunDatagrams(const std::string& request)
{
    rust::Box<netacc::DatagramRun> run = netacc::new_datagram_run(request);
    netacc::ProgramNetwork network = run->network();
    RnicHelper helper = MakeHelper(network);
    Ptr<RnicFleet> fleet = CreateObject<RnicFleet>();
    fleet->Adopt(run->fleet());
    NodeContainer nodes(network.hosts);
    helper.InstallStar(nodes, fleet);
    Ptr<RnicUdp> udp = CreateObject<RnicUdp>();
    udp->Install(nodes, helper.GetDevices(), fleet);
    helper.Start();
    run->start(std::make_unique<RnicStepper>(helper));
    std::string order;
    while (run->is_going() && std::getline(std::cin, order))
    {
        std::cout << std::string(run->order(order)) << std::endl;
    }
    Simulator::Destroy();
}

int
main()
{
    GlobalValue::Bind("SimulatorImplementationType", StringValue("ns3::RnicStepSimulatorImpl"));
    std::string request;
    while (std::getline(std::cin, request))
    {
        try
        {
            if (netacc::is_datagram_run(request))
            {
                RunDatagrams(request);
                continue;
            }
            std::cout << Answer(request) << std::endl;
        }
        catch (const std::exception& e)
        {
            std::cerr << "netacc-ns3-exec: " << e.what() << std::endl;
            return 1;
        }
    }
    return 0;
}
