/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#include "rnic-switch.h"

#include "rnic-parameters.h"

#include "ns3/boolean.h"
#include "ns3/double.h"
#include "ns3/log.h"
#include "ns3/simulator.h"
#include "ns3/trace-source-accessor.h"
#include "ns3/uinteger.h"

#include <algorithm>

namespace ns3
{

NS_LOG_COMPONENT_DEFINE("RnicSwitch");
NS_OBJECT_ENSURE_REGISTERED(RnicSwitch);

TypeId
RnicSwitch::AddSwitchAttributes(TypeId tid)
{
    auto specs = netacc::switch_attributes();
    auto add = [&](const char* name, Ptr<const AttributeAccessor> accessor) {
        tid = AddParameter(tid, FindParameter(specs, name), accessor);
    };
    add("PortBufferBytes", MakeUintegerAccessor(&RnicSwitch::m_portBufferBytes));
    add("SharedBufferBytes", MakeUintegerAccessor(&RnicSwitch::m_sharedBufferBytes));
    add("Alpha", MakeDoubleAccessor(&RnicSwitch::m_alpha));
    add("Ecn", MakeBooleanAccessor(&RnicSwitch::m_ecn));
    add("EcnMinBytes", MakeUintegerAccessor(&RnicSwitch::m_ecnMinBytes));
    add("EcnMaxBytes", MakeUintegerAccessor(&RnicSwitch::m_ecnMaxBytes));
    add("EcnProbabilityPpm", MakeUintegerAccessor(&RnicSwitch::m_ecnProbabilityPpm));
    add("Pfc", MakeBooleanAccessor(&RnicSwitch::m_pfc));
    add("PfcXoffBytes", MakeUintegerAccessor(&RnicSwitch::m_pfcXoffBytes));
    add("PfcXonBytes", MakeUintegerAccessor(&RnicSwitch::m_pfcXonBytes));
    return tid;
}

TypeId
RnicSwitch::GetTypeId()
{
    static TypeId tid = AddSwitchAttributes(
        TypeId("ns3::RnicSwitch")
            .SetParent<Object>()
            .SetGroupName("Rnic")
            .AddConstructor<RnicSwitch>()
            .AddTraceSource("Drop",
                            "A frame finds no room.",
                            MakeTraceSourceAccessor(&RnicSwitch::m_dropTrace),
                            "ns3::RnicPort::FrameTracedCallback")
            .AddTraceSource("Mark",
                            "A frame is marked.",
                            MakeTraceSourceAccessor(&RnicSwitch::m_markTrace),
                            "ns3::RnicPort::FrameTracedCallback")
            .AddTraceSource("Pause",
                            "The peer of a port is paused (true) or released (false).",
                            MakeTraceSourceAccessor(&RnicSwitch::m_pauseTrace),
                            "ns3::RnicSwitch::PauseTracedCallback"));
    return tid;
}

RnicSwitch::RnicSwitch()
    : m_salt(0),
      m_used(0),
      m_dropped(0),
      m_marked(0),
      m_pauses(0),
      m_maxQueueBytes(0)
{
}

RnicSwitch::~RnicSwitch()
{
}

void
RnicSwitch::DoDispose()
{
    m_outputs.clear();
    Object::DoDispose();
}

uint32_t
RnicSwitch::AddPort(Ptr<RnicPort> port)
{
    auto index = static_cast<uint32_t>(m_outputs.size());
    Output output;
    output.port = port;
    m_outputs.push_back(output);
    port->SetReadyCallback(MakeCallback(&RnicSwitch::SendNext, this).Bind(index));
    return index;
}

void
RnicSwitch::SetUpstream(uint32_t index, Ptr<RnicPort> upstream)
{
    m_outputs.at(index).upstream = upstream;
}

void
RnicSwitch::AddRoute(uint32_t dst, uint32_t index)
{
    if (m_routes.size() <= dst)
    {
        m_routes.resize(dst + 1);
    }
    m_routes[dst].push_back(index);
}

void
RnicSwitch::ClearRoutes()
{
    m_routes.clear();
}

Ptr<RnicPort>
RnicSwitch::GetPort(uint32_t index) const
{
    return m_outputs.at(index).port;
}

void
RnicSwitch::Seed(uint64_t seed, uint64_t firstQueue)
{
    m_salt = RnicRandom(seed, firstQueue, 2).Next();
    for (std::size_t i = 0; i < m_outputs.size(); i++)
    {
        m_outputs[i].random = RnicRandom(seed, firstQueue + i, 1);
    }
}

void
RnicSwitch::Receive(uint32_t ingress, const RnicFrame& received)
{
    NS_LOG_FUNCTION(this << ingress << received.head.src << received.head.dst);
    // An address that no host has.
    if (received.head.dst >= m_routes.size() || m_routes[received.head.dst].empty())
    {
        return;
    }
    const std::vector<uint32_t>& paths = m_routes[received.head.dst];
    uint32_t egress = paths.front();
    if (paths.size() > 1)
    {
        uint64_t ends = (uint64_t{received.head.src} << 32) | received.head.dst;
        uint64_t hash = RnicRandom::Mix(RnicRandom::Mix(m_salt ^ ends) ^ received.head.flow);
        egress = paths[hash % paths.size()];
    }
    Output& output = m_outputs[egress];
    if (output.port->IsReady())
    {
        output.forwarded++;
        RnicFrame frame = received;
        output.port->AddTelemetry(frame, output.bytes);
        output.port->Send(frame);
        return;
    }
    if (!HasRoom(output, received.head.wire_bytes))
    {
        m_dropped++;
        m_dropTrace(received);
        return;
    }
    RnicFrame frame = received;
    if (m_ecn && frame.head.data && output.random.Chance(MarkPpm(output.bytes)))
    {
        frame.head.congestion = true;
        m_marked++;
        m_markTrace(frame);
    }
    output.queue.push_back({frame, ingress});
    output.bytes += frame.head.wire_bytes;
    m_used += frame.head.wire_bytes;
    m_maxQueueBytes = std::max(m_maxQueueBytes, output.bytes);
    m_outputs[ingress].ingressBytes += frame.head.wire_bytes;
    UpdatePause(ingress);
}

void
RnicSwitch::SendNext(uint32_t index)
{
    Output& output = m_outputs[index];
    if (output.queue.empty() || !output.port->IsReady())
    {
        return;
    }
    Waiting next = output.queue.front();
    output.queue.pop_front();
    output.bytes -= next.frame.head.wire_bytes;
    m_used -= next.frame.head.wire_bytes;
    m_outputs[next.ingress].ingressBytes -= next.frame.head.wire_bytes;
    output.forwarded++;
    output.port->AddTelemetry(next.frame, output.bytes);
    output.port->Send(next.frame);
    UpdatePause(next.ingress);
}

bool
RnicSwitch::HasRoom(const Output& output, uint32_t bytes) const
{
    if (output.bytes + bytes > m_portBufferBytes)
    {
        return false;
    }
    if (m_sharedBufferBytes == 0)
    {
        return true;
    }
    if (m_used + bytes > m_sharedBufferBytes)
    {
        return false;
    }
    auto free = static_cast<double>(m_sharedBufferBytes - m_used);
    return static_cast<double>(output.bytes + bytes) <= m_alpha * free;
}

uint32_t
RnicSwitch::MarkPpm(uint64_t queued) const
{
    if (queued < m_ecnMinBytes)
    {
        return 0;
    }
    if (queued >= m_ecnMaxBytes)
    {
        return 1000000;
    }
    // At most a million times a buffer: far below 2^64.
    return static_cast<uint32_t>(m_ecnProbabilityPpm * (queued - m_ecnMinBytes) /
                                 std::max<uint64_t>(m_ecnMaxBytes - m_ecnMinBytes, 1));
}

void
RnicSwitch::UpdatePause(uint32_t index)
{
    Output& output = m_outputs[index];
    if (!m_pfc || !output.upstream)
    {
        return;
    }
    bool pause = output.pausing ? output.ingressBytes > m_pfcXonBytes : output.ingressBytes > m_pfcXoffBytes;
    if (pause == output.pausing)
    {
        return;
    }
    output.pausing = pause;
    m_pauses += pause ? 1 : 0;
    m_pauseTrace(index, pause);
    // The pause frame goes before what waits, beside what is being sent.
    Simulator::Schedule(output.port->GetPauseDelay(), &RnicPort::SetPaused, output.upstream, pause);
}

uint64_t
RnicSwitch::GetDropped() const
{
    return m_dropped;
}

uint64_t
RnicSwitch::GetMarked() const
{
    return m_marked;
}

uint64_t
RnicSwitch::GetPauses() const
{
    return m_pauses;
}

uint64_t
RnicSwitch::GetMaxQueueBytes() const
{
    return m_maxQueueBytes;
}

uint64_t
RnicSwitch::GetQueueBytes(uint32_t index) const
{
    return m_outputs.at(index).bytes;
}

uint64_t
RnicSwitch::GetForwarded(uint32_t index) const
{
    return m_outputs.at(index).forwarded;
}

} // namespace ns3
