/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#include "scenario-network.h"

#include "ns3/config.h"
#include "ns3/simulator.h"
#include "ns3/string.h"
#include "ns3/uinteger.h"

#include <algorithm>
#include <deque>
#include <limits>

namespace ns3
{

/// A link that loses so many of a million is cut.
static const uint32_t ALL_PPM = 1000000;

/// A switch that cannot be reached.
static const uint32_t FAR = std::numeric_limits<uint32_t>::max();

/**
 * Gives a port a link's properties.
 * \param port the port
 * \param link the link
 */
static void
SetPort(Ptr<RnicPort> port, const netacc::NetworkLink& link)
{
    port->SetAttribute("DataRate", DataRateValue(DataRate(link.rate_bps)));
    port->SetAttribute("Delay", TimeValue(NanoSeconds(link.delay_ns)));
    port->SetAttribute("LossPpm", UintegerValue(link.loss_ppm));
}

ScenarioNetwork::ScenarioNetwork(const netacc::NetworkSpec& spec, Ptr<RnicFleet> fleet)
    : m_hosts(spec.hosts),
      m_switches(spec.switches),
      m_faults(spec.faults.begin(), spec.faults.end()),
      m_nodes(spec.hosts)
{
    m_helper.SetSeed(spec.seed);
    for (const auto& setting : spec.switch_settings)
    {
        m_helper.SetSwitchAttribute(std::string(setting.name), StringValue(std::string(setting.value)));
    }
    Build(spec, fleet);
    if (spec.tcp_buffer_bytes > 0)
    {
        Config::SetDefault("ns3::RnicNetDevice::Mtu", UintegerValue(spec.tcp_mtu_bytes));
        m_tcp = CreateObject<RnicTcp>();
        m_tcp->Install(m_nodes, m_helper.GetDevices(), fleet);
    }
}

ScenarioNetwork::~ScenarioNetwork()
{
    if (m_tcp)
    {
        m_tcp->Dispose();
    }
}

void
ScenarioNetwork::Build(const netacc::NetworkSpec& spec, Ptr<RnicFleet> fleet)
{
    if (m_switches == 0)
    {
        m_helper.InstallDirect(m_nodes, fleet);
        const auto& devices = m_helper.GetDevices();
        m_links.push_back({spec.links[0], {devices[0]->GetPort(), devices[1]->GetPort()}, {0, 0}});
        SetPort(devices[0]->GetPort(), spec.links[0]);
        SetPort(devices[1]->GetPort(), spec.links[0]);
        return;
    }
    m_helper.InstallDevices(m_nodes, fleet);
    for (uint32_t i = 0; i < m_switches; i++)
    {
        m_helper.AddSwitch();
    }
    for (const auto& link : spec.links)
    {
        Join(link);
    }
    m_helper.SeedSwitches();
    Route();
}

bool
ScenarioNetwork::IsHost(uint32_t node) const
{
    return node < m_hosts;
}

void
ScenarioNetwork::Join(const netacc::NetworkLink& spec)
{
    const auto& switches = m_helper.GetSwitches();
    Link link{spec, {}, {0, 0}};
    if (IsHost(spec.a) || IsHost(spec.b))
    {
        std::size_t side = IsHost(spec.a) ? 0 : 1;
        uint32_t host = side == 0 ? spec.a : spec.b;
        uint32_t other = side == 0 ? spec.b : spec.a;
        NS_ABORT_MSG_IF(IsHost(other), "with switches, a host's link leads to one");
        link.ports[side] = m_helper.GetDevices().at(host)->GetPort();
        auto [port, index] = m_helper.JoinHost(host, switches.at(other - m_hosts));
        link.ports[1 - side] = port;
        link.indices[1 - side] = index;
    }
    else
    {
        auto [a, b] = m_helper.JoinSwitches(switches.at(spec.a - m_hosts), switches.at(spec.b - m_hosts));
        link.ports = {switches[spec.a - m_hosts]->GetPort(a), switches[spec.b - m_hosts]->GetPort(b)};
        link.indices = {a, b};
    }
    SetPort(link.ports[0], spec);
    SetPort(link.ports[1], spec);
    m_links.push_back(link);
}

void
ScenarioNetwork::Route()
{
    const auto& switches = m_helper.GetSwitches();
    for (const auto& each : switches)
    {
        each->ClearRoutes();
    }
    // By switch: the hosts on it, and the switches next to it, in order of the links.
    std::vector<std::vector<std::pair<uint32_t, uint32_t>>> hosts(m_switches);
    std::vector<std::vector<std::pair<uint32_t, uint32_t>>> next(m_switches);
    for (const Link& link : m_links)
    {
        if (link.spec.loss_ppm >= ALL_PPM)
        {
            continue;
        }
        std::array<uint32_t, 2> ends{link.spec.a, link.spec.b};
        for (std::size_t side = 0; side < 2; side++)
        {
            if (IsHost(ends[side]))
            {
                continue;
            }
            uint32_t here = ends[side] - m_hosts;
            uint32_t there = ends[1 - side];
            auto& list = IsHost(there) ? hosts[here] : next[here];
            list.emplace_back(IsHost(there) ? there : there - m_hosts, link.indices[side]);
        }
    }
    for (uint32_t to = 0; to < m_switches; to++)
    {
        if (hosts[to].empty())
        {
            continue;
        }
        std::vector<uint32_t> distance(m_switches, FAR);
        std::deque<uint32_t> reached{to};
        distance[to] = 0;
        while (!reached.empty())
        {
            uint32_t here = reached.front();
            reached.pop_front();
            for (const auto& [there, index] : next[here])
            {
                if (distance[there] == FAR)
                {
                    distance[there] = distance[here] + 1;
                    reached.push_back(there);
                }
            }
        }
        for (uint32_t here = 0; here < m_switches; here++)
        {
            for (const auto& [host, index] : hosts[to])
            {
                if (here == to)
                {
                    switches[here]->AddRoute(host, index);
                    continue;
                }
                for (const auto& [there, port] : next[here])
                {
                    if (distance[here] != FAR && distance[there] + 1 == distance[here])
                    {
                        switches[here]->AddRoute(host, port);
                    }
                }
            }
        }
    }
}

void
ScenarioNetwork::Change(netacc::NetworkFault fault)
{
    Link& link = m_links.at(fault.link);
    link.spec.rate_bps = fault.rate_bps;
    link.spec.loss_ppm = fault.loss_ppm;
    SetPort(link.ports[0], link.spec);
    SetPort(link.ports[1], link.spec);
    if (fault.reroute && m_switches > 0)
    {
        Route();
    }
}

void
ScenarioNetwork::Start()
{
    for (const auto& fault : m_faults)
    {
        Simulator::Schedule(NanoSeconds(fault.at_ns), &ScenarioNetwork::Change, this, fault);
    }
    m_helper.Start();
}

void
ScenarioNetwork::WritePortsHead(std::ostream& out)
{
    out << "at_ns,link,node,peer,queue_bytes,sent_bytes,paused,pauses\n";
}

void
ScenarioNetwork::WritePorts(std::ostream& out, uint64_t nowNs) const
{
    for (std::size_t number = 0; number < m_links.size(); number++)
    {
        const Link& link = m_links[number];
        std::array<uint32_t, 2> ends{link.spec.a, link.spec.b};
        for (std::size_t side = 0; side < 2; side++)
        {
            uint32_t node = ends[side];
            const auto& port = link.ports[side];
            // Packets of a host wait in its NIC's queue pairs, not at the port.
            uint64_t queue = IsHost(node) ? 0 : m_helper.GetSwitches()[node - m_hosts]->GetQueueBytes(link.indices[side]);
            out << nowNs << ',' << number << ',' << node << ',' << ends[1 - side] << ',' << queue << ',' << port->GetSentBytes()
                << ',' << (port->IsPaused() ? 1 : 0) << ',' << port->GetPauses() << '\n';
        }
    }
}

netacc::NetworkTotals
ScenarioNetwork::GetTotals() const
{
    netacc::NetworkTotals totals{0, 0, 0, 0, 0, m_tcp ? m_tcp->GetFailed() : 0, Simulator::GetEventCount()};
    for (const Link& link : m_links)
    {
        totals.lost += link.ports[0]->GetLost() + link.ports[1]->GetLost();
    }
    for (const auto& each : m_helper.GetSwitches())
    {
        totals.dropped += each->GetDropped();
        totals.marked += each->GetMarked();
        totals.pauses += each->GetPauses();
        totals.max_queue_bytes = std::max(totals.max_queue_bytes, each->GetMaxQueueBytes());
    }
    return totals;
}

} // namespace ns3
