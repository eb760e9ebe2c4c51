/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#include "rnic-helper.h"

#include "ns3/abort.h"
#include "ns3/node.h"

#include <malloc.h>

namespace ns3
{

RnicHelper::RnicHelper()
    : m_seed(0),
      m_nextPort(0)
{
    m_portFactory.SetTypeId(RnicPort::GetTypeId());
    m_switchFactory.SetTypeId(RnicSwitch::GetTypeId());
}

void
RnicHelper::SetPortAttribute(std::string name, const AttributeValue& value)
{
    m_portFactory.Set(name, value);
}

void
RnicHelper::SetSwitchAttribute(std::string name, const AttributeValue& value)
{
    m_switchFactory.Set(name, value);
}

void
RnicHelper::SetSeed(uint64_t seed)
{
    m_seed = seed;
}

void
RnicHelper::TakeMemoryWhenUsed()
{
    mallopt(M_TOP_PAD, 0);
}

void
RnicHelper::InstallDevices(NodeContainer nodes, Ptr<RnicFleet> fleet)
{
    NS_ABORT_MSG_UNLESS(m_devices.empty(), "a helper installs one network");
    m_fleet = fleet;
    if (!fleet->IsBuilt())
    {
        fleet->Build(nodes.GetN());
    }
    for (uint32_t i = 0; i < nodes.GetN(); i++)
    {
        Ptr<RnicPort> port = m_portFactory.Create<RnicPort>();
        port->Seed(m_seed, m_nextPort++);
        Ptr<RnicDevice> device = CreateObject<RnicDevice>();
        device->Attach(fleet, i, port);
        nodes.Get(i)->AggregateObject(device);
        m_devices.push_back(device);
    }
    m_farPorts.resize(nodes.GetN());
}

Ptr<RnicSwitch>
RnicHelper::AddSwitch()
{
    m_switches.push_back(m_switchFactory.Create<RnicSwitch>());
    m_switchPorts.push_back(0);
    return m_switches.back();
}

std::pair<Ptr<RnicPort>, uint32_t>
RnicHelper::AddPort(Ptr<RnicSwitch> to)
{
    Ptr<RnicPort> port = m_portFactory.Create<RnicPort>();
    port->Seed(m_seed, m_nextPort++);
    uint32_t index = to->AddPort(port);
    for (std::size_t i = 0; i < m_switches.size(); i++)
    {
        m_switchPorts[i] += m_switches[i] == to ? 1 : 0;
    }
    return {port, index};
}

std::pair<Ptr<RnicPort>, uint32_t>
RnicHelper::JoinHost(uint32_t host, Ptr<RnicSwitch> to)
{
    Ptr<RnicDevice> device = m_devices.at(host);
    auto [port, index] = AddPort(to);
    device->GetPort()->SetReceiver(MakeCallback(&RnicSwitch::Receive, to).Bind(index));
    port->SetReceiver(MakeCallback(&RnicDevice::Receive, device));
    to->SetUpstream(index, device->GetPort());
    to->AddRoute(host, index);
    m_farPorts.at(host) = port;
    return {port, index};
}

std::pair<uint32_t, uint32_t>
RnicHelper::JoinSwitches(Ptr<RnicSwitch> a, Ptr<RnicSwitch> b)
{
    auto [portA, indexA] = AddPort(a);
    auto [portB, indexB] = AddPort(b);
    portA->SetReceiver(MakeCallback(&RnicSwitch::Receive, b).Bind(indexB));
    portB->SetReceiver(MakeCallback(&RnicSwitch::Receive, a).Bind(indexA));
    a->SetUpstream(indexA, portB);
    b->SetUpstream(indexB, portA);
    return {indexA, indexB};
}

void
RnicHelper::SetCut(uint32_t host, bool cut)
{
    m_devices.at(host)->GetPort()->SetCut(cut);
    m_farPorts.at(host)->SetCut(cut);
}

void
RnicHelper::SeedSwitches()
{
    uint64_t first = 0;
    for (std::size_t i = 0; i < m_switches.size(); i++)
    {
        m_switches[i]->Seed(m_seed, first);
        first += m_switchPorts[i];
    }
}

void
RnicHelper::InstallDirect(NodeContainer nodes, Ptr<RnicFleet> fleet)
{
    NS_ABORT_MSG_UNLESS(nodes.GetN() == 2, "a direct link joins two nodes");
    InstallDevices(nodes, fleet);
    for (uint32_t i = 0; i < 2; i++)
    {
        m_devices[i]->GetPort()->SetReceiver(MakeCallback(&RnicDevice::Receive, m_devices[1 - i]));
        m_farPorts[i] = m_devices[1 - i]->GetPort();
    }
}

void
RnicHelper::InstallStar(NodeContainer nodes, Ptr<RnicFleet> fleet)
{
    InstallDevices(nodes, fleet);
    Ptr<RnicSwitch> hub = AddSwitch();
    for (uint32_t i = 0; i < nodes.GetN(); i++)
    {
        JoinHost(i, hub);
    }
    SeedSwitches();
}

void
RnicHelper::InstallLeafSpine(NodeContainer nodes, uint32_t leaves, uint32_t spines, Ptr<RnicFleet> fleet)
{
    NS_ABORT_MSG_UNLESS(leaves > 0 && spines > 0 && nodes.GetN() % leaves == 0,
                        "every leaf has the same number of nodes, and there is a spine");
    InstallDevices(nodes, fleet);
    uint32_t perLeaf = nodes.GetN() / leaves;
    std::vector<Ptr<RnicSwitch>> leaf;
    std::vector<Ptr<RnicSwitch>> spine;
    for (uint32_t i = 0; i < leaves; i++)
    {
        leaf.push_back(AddSwitch());
    }
    for (uint32_t i = 0; i < spines; i++)
    {
        spine.push_back(AddSwitch());
    }
    for (uint32_t host = 0; host < nodes.GetN(); host++)
    {
        JoinHost(host, leaf[host / perLeaf]);
    }
    for (uint32_t l = 0; l < leaves; l++)
    {
        for (uint32_t s = 0; s < spines; s++)
        {
            auto [up, down] = JoinSwitches(leaf[l], spine[s]);
            for (uint32_t host = 0; host < nodes.GetN(); host++)
            {
                if (host / perLeaf == l)
                {
                    spine[s]->AddRoute(host, down);
                }
                else
                {
                    leaf[l]->AddRoute(host, up);
                }
            }
        }
    }
    SeedSwitches();
}

void
RnicHelper::Start()
{
    std::vector<RnicDevice*> all;
    for (const auto& device : m_devices)
    {
        all.push_back(PeekPointer(device));
    }
    for (const auto& device : m_devices)
    {
        device->SetNeighbours(all);
    }
    m_fleet->GetModel().start();
    for (const auto& device : m_devices)
    {
        device->Serve();
    }
}

const std::vector<Ptr<RnicSwitch>>&
RnicHelper::GetSwitches() const
{
    return m_switches;
}

const std::vector<Ptr<RnicDevice>>&
RnicHelper::GetDevices() const
{
    return m_devices;
}

} // namespace ns3
