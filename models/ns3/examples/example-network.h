/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#ifndef EXAMPLE_NETWORK_H
#define EXAMPLE_NETWORK_H

#include "ns3/global-value.h"
#include "ns3/node-container.h"
#include "ns3/rnic-helper.h"
#include "ns3/rnic-simulator.h"
#include "ns3/simulator.h"
#include "ns3/string.h"

#include <chrono>
#include <cstdint>

/// The network of the examples.
namespace example
{

/// Has the simulator run in one thread, with a faster queue than ns-3's, and take memory only when it is used. To be called first.
inline void
PrepareSimulator()
{
    ns3::StringValue type(ns3::RnicSimulatorImpl::GetTypeId().GetName());
    ns3::GlobalValue::Bind("SimulatorImplementationType", type);
    ns3::RnicHelper::TakeMemoryWhenUsed();
}

/**
 * \param nodes how many there are to be
 * \param leaves switches that they are around; 0 for one switch
 * \return as many, or as many more as leave no leaf with fewer than another
 */
inline uint32_t
RoundUp(uint32_t nodes, uint32_t leaves)
{
    return leaves == 0 ? nodes : (nodes + leaves - 1) / leaves * leaves;
}

/**
 * \param helper makes the network
 * \param nodes that it joins
 * \param leaves switches that they are around; 0 for one switch
 * \param spines switches between those
 * \param fleet the nodes' NICs
 */
inline void
Install(ns3::RnicHelper& helper,
        ns3::NodeContainer nodes,
        uint32_t leaves,
        uint32_t spines,
        ns3::Ptr<ns3::RnicFleet> fleet)
{
    if (leaves > 0)
    {
        helper.InstallLeafSpine(nodes, leaves, spines, fleet);
    }
    else
    {
        helper.InstallStar(nodes, fleet);
    }
}

/**
 * Runs the simulation.
 * \return seconds that it took
 */
inline double
Run()
{
    auto begun = std::chrono::steady_clock::now();
    ns3::Simulator::Run();
    std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begun;
    return wall.count();
}

} // namespace example

#endif /* EXAMPLE_NETWORK_H */
