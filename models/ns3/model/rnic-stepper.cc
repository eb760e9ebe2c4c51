/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#include "rnic-stepper.h"

#include "ns3/abort.h"
#include "ns3/simulator.h"

#include <limits>

namespace ns3
{

/// Events of one instant, after which the simulation is taken to make no progress. Arbitrary: far above what a switch has.
static const uint64_t MAX_EVENTS_AT_ONCE = 1000000;

NS_OBJECT_ENSURE_REGISTERED(RnicStepSimulatorImpl);

TypeId
RnicStepSimulatorImpl::GetTypeId()
{
    static TypeId tid = TypeId("ns3::RnicStepSimulatorImpl")
                            .SetParent<DefaultSimulatorImpl>()
                            .SetGroupName("Rnic")
                            .AddConstructor<RnicStepSimulatorImpl>();
    return tid;
}

void
RnicStepSimulatorImpl::PreEventHook(const EventId&)
{
    // The event that follows still happens.
    Stop();
}

RnicStepper::RnicStepper(RnicHelper& helper)
    : m_helper(helper),
      m_now(0),
      m_events(0)
{
}

uint64_t
RnicStepper::step()
{
    m_helper.GetDevices().front()->ServeOthers();
    uint64_t before = Simulator::GetEventCount();
    Simulator::Run();
    if (Simulator::GetEventCount() == before)
    {
        return std::numeric_limits<uint64_t>::max();
    }
    auto now = static_cast<uint64_t>(Simulator::Now().GetNanoSeconds());
    m_events = now == m_now ? m_events + 1 : 0;
    m_now = now;
    NS_ABORT_MSG_IF(m_events > MAX_EVENTS_AT_ONCE, "time stands still at " << now << " ns");
    return now;
}

void
RnicStepper::set_cut(uint32_t node, bool cut)
{
    m_helper.SetCut(node, cut);
}

} // namespace ns3
