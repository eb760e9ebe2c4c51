/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#include "rnic-device.h"

#include "ns3/log.h"
#include "ns3/simulator.h"
#include "ns3/trace-source-accessor.h"
#include "ns3/uinteger.h"

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
                            .AddAttribute("QueuePackets",
                                          "The kernel's packets that wait for the port; more are dropped.",
                                          UintegerValue(1000),
                                          MakeUintegerAccessor(&RnicDevice::m_queuePackets),
                                          MakeUintegerChecker<uint32_t>(1))
                            .AddTraceSource("Rx",
                                            "A frame arrives at the NIC.",
                                            MakeTraceSourceAccessor(&RnicDevice::m_rxTrace),
                                            "ns3::RnicPort::FrameTracedCallback");
    return tid;
}

RnicDevice::RnicDevice()
    : m_node(0),
      m_timer(NEVER),
      m_handleTimer(&RnicDevice::HandleTimer, this),
      m_packetsTurn(false),
      m_dropped(0)
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
    m_queue.clear();
    m_packetReceiver = MakeNullCallback<void, const RnicFrame&>();
    m_others = MakeNullCallback<void>();
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

/// \return the time now, in nanoseconds
static uint64_t
NowNs()
{
    return static_cast<uint64_t>(Simulator::Now().GetNanoSeconds());
}

void
RnicDevice::Serve()
{
    ServeAt(NowNs());
}

void
RnicDevice::ServeAt(uint64_t now)
{
    ServeThis(now);
    ServeOthersAt(now);
}

void
RnicDevice::SetPacketReceiver(Callback<void, const RnicFrame&> receiver)
{
    m_packetReceiver = receiver;
}

void
RnicDevice::SetOthers(Callback<void> others)
{
    m_others = others;
}

bool
RnicDevice::SendPacket(const RnicFrame& frame)
{
    if (m_queue.size() >= m_queuePackets)
    {
        m_dropped++;
        return false;
    }
    m_queue.push_back(frame);
    if (m_port->IsReady())
    {
        SendNext(NowNs());
    }
    return true;
}

uint64_t
RnicDevice::GetDropped() const
{
    return m_dropped;
}

void
RnicDevice::SendNext(uint64_t now)
{
    RnicFrame frame;
    bool packet = !m_queue.empty();
    if (!packet || !m_packetsTurn)
    {
        if (m_fleet->GetModel().poll_transmit(m_node, now, frame.head))
        {
            m_packetsTurn = true;
            m_port->Send(frame);
            return;
        }
    }
    if (packet)
    {
        m_packetsTurn = false;
        frame = m_queue.front();
        m_queue.pop_front();
        m_port->Send(frame);
    }
}

void
RnicDevice::ServeOthers()
{
    ServeOthersAt(NowNs());
}

void
RnicDevice::ServeOthersAt(uint64_t now)
{
    // A process may have given work to others: what an anchor in memory carries takes no time.
    while (true)
    {
        uint32_t node = m_fleet->GetModel().next_dirty();
        if (node >= m_neighbours.size())
        {
            break;
        }
        m_neighbours[node]->ServeThis(now);
    }
    if (!m_others.IsNull())
    {
        m_others();
    }
}

void
RnicDevice::ServeThis(uint64_t now)
{
    netacc::Fleet& model = m_fleet->GetModel();
    if (m_port->IsReady())
    {
        SendNext(now);
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
        m_handleTimer.Schedule(NanoSeconds(at - now));
    }
}

void
RnicDevice::HandleTimer()
{
    uint64_t now = NowNs();
    if (m_timer != now)
    {
        return;
    }
    m_timer = NEVER;
    m_fleet->GetModel().handle_timer(m_node, now);
    ServeAt(now);
}

void
RnicDevice::Receive(const RnicFrame& frame)
{
    m_rxTrace(frame);
    if (frame.packet)
    {
        if (!m_packetReceiver.IsNull())
        {
            m_packetReceiver(frame);
        }
        return;
    }
    uint64_t now = NowNs();
    m_fleet->GetModel().handle_packet(m_node, now, frame.head);
    ServeAt(now);
}

} // namespace ns3
