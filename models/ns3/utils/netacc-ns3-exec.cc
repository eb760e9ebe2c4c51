/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

// The executor "ns3": runs programs of socket operations (tests/program) with the production core on modelled NICs in this
// network. A line of standard input is a request, a line of standard output its answer: sim/ns3/src/program.rs.

#include "ns3/global-value.h"
#include "ns3/node-container.h"
#include "ns3/rnic-stepper.h"
#include "ns3/rnic-tcp.h"
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

int
main()
{
    GlobalValue::Bind("SimulatorImplementationType", StringValue("ns3::RnicStepSimulatorImpl"));
    std::string request;
    while (std::getline(std::cin, request))
    {
        try
        {
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
