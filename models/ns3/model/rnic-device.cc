/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#include "rnic-device.h"

#include "ns3/log.h"
#include "ns3/simulator.h"
#include "ns3/trace-source-accessor.h"

#include <algorithm>
#include <limits>

namespace ns3
{

NS_LOG_COMPONENT_DEFINE("RnicDevice");
NS_OBJECT_ENSURE_REGISTERED(RnicDevice);

/// No timer is set.
static const uint64_t NEVER = std::numeric_limits<uint64_t>::max();

TypeId
RnicDevice::GetTypeId()
{
    static TypeId tid = TypeId("ns3::RnicDevice")
                            .SetParent<Object>()
                            .SetGroupName("Rnic")
                            .AddConstructor<RnicDevice>()
                            .AddTraceSource("Rx",
                                            "A frame arrives at the NIC.",
                                            MakeTraceSourceAccessor(&RnicDevice::m_rxTrace),
                                            "ns3::RnicPort::FrameTracedCallback");
    return tid;
}

RnicDevice::RnicDevice()
    : m_node(0),
      m_timer(NEVER)
{
}

RnicDevice::~RnicDevice()
{
}

void
RnicDevice::DoDispose()
{
    m_fleet = nullptr;
    m_port = nullptr;
    m_neighbours.clear();
    Object::DoDispose();
}

void
RnicDevice::Attach(Ptr<RnicFleet> fleet, uint32_t node, Ptr<RnicPort> port)
{
    m_fleet = fleet;
    m_node = node;
    m_port = port;
    m_port->SetReadyCallback(MakeCallback(&RnicDevice::Serve, this));
}

Ptr<RnicPort>
RnicDevice::GetPort() const
{
    return m_port;
}

void
RnicDevice::SetNeighbours(std::vector<RnicDevice*> neighbours)
{
    m_neighbours = std::move(neighbours);
}

void
RnicDevice::Serve()
{
    ServeThis();
    ServeOthers();
}

void
RnicDevice::ServeOthers()
{
    // A process may have given work to others: what an anchor carries takes no time.
    while (true)
    {
        uint32_t node = m_fleet->GetModel().next_dirty();
        if (node >= m_neighbours.size())
        {
            return;
        }
        m_neighbours[node]->ServeThis();
    }
}

void
RnicDevice::ServeThis()
{
    auto now = static_cast<uint64_t>(Simulator::Now().GetNanoSeconds());
    netacc::Fleet& model = m_fleet->GetModel();
    if (m_port->IsReady())
    {
        RnicFrame frame;
        if (model.poll_transmit(m_node, now, frame))
        {
            m_port->Send(frame);
        }
    }
    uint64_t deadline = model.next_deadline(m_node);
    if (deadline == NEVER)
    {
        return;
    }
    uint64_t at = std::max(deadline, now);
    // A timer is never moved or cancelled: one that is late is followed by another, and finds itself overtaken.
    if (at < m_timer)
    {
        m_timer = at;
        Simulator::Schedule(NanoSeconds(at - now), &RnicDevice::HandleTimer, this, at);
    }
}

void
RnicDevice::HandleTimer(uint64_t at)
{
    if (m_timer != at)
    {
        return;
    }
    m_timer = NEVER;
    m_fleet->GetModel().handle_timer(m_node, at);
    Serve();
}

void
RnicDevice::Receive(const RnicFrame& frame)
{
    m_rxTrace(frame);
    auto now = static_cast<uint64_t>(Simulator::Now().GetNanoSeconds());
    m_fleet->GetModel().handle_packet(m_node, now, frame);
    Serve();
}

} // namespace ns3
