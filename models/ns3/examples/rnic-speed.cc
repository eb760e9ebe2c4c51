/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

// How fast packets are simulated: UDP over two point-to-point links and a router, as plain ns-3 forwards it, beside packets of the
// same length over NICs and a switch; these as messages, and as bytes that the production core writes, moves and reads. The three
// take turns. One line of JSON.

#include "example-network.h"

#include "ns3/command-line.h"
#include "ns3/inet-socket-address.h"
#include "ns3/internet-stack-helper.h"
#include "ns3/ipv4-address-helper.h"
#include "ns3/ipv4-global-routing-helper.h"
#include "ns3/point-to-point-helper.h"
#include "ns3/string.h"
#include "ns3/udp-socket-factory.h"
#include "ns3/uinteger.h"

#include <algorithm>
#include <iostream>
#include <vector>

using namespace ns3;

/// Rate of every link.
static const char* const RATE = "100Gbps";
/// Delay of every link, in nanoseconds.
static const uint64_t DELAY_NS = 500;

/// Datagrams through a router.
class Datagrams
{
  public:
    /**
     * \param packets how many
     * \param bytes of payload of each
     * \return packets for each second of real time
     */
    static double Measure(uint32_t packets, uint32_t bytes)
    {
        NodeContainer nodes(3);
        InternetStackHelper stack;
        stack.SetIpv6StackInstall(false);
        stack.Install(nodes);
        PointToPointHelper link;
        link.SetDeviceAttribute("DataRate", StringValue(RATE));
        link.SetDeviceAttribute("Mtu", UintegerValue(9000));
        link.SetChannelAttribute("Delay", TimeValue(NanoSeconds(DELAY_NS)));
        Ipv4AddressHelper near("10.1.0.0", "255.255.255.0");
        Ipv4AddressHelper far("10.2.0.0", "255.255.255.0");
        near.Assign(link.Install(nodes.Get(0), nodes.Get(1)));
        Ipv4InterfaceContainer to = far.Assign(link.Install(nodes.Get(1), nodes.Get(2)));
        Ipv4GlobalRoutingHelper::PopulateRoutingTables();
        Datagrams run(packets, bytes, Socket::CreateSocket(nodes.Get(0), UdpSocketFactory::GetTypeId()));
        Ptr<Socket> sink = Socket::CreateSocket(nodes.Get(2), UdpSocketFactory::GetTypeId());
        sink->Bind(InetSocketAddress(Ipv4Address::GetAny(), 9));
        sink->SetRecvCallback(MakeCallback(&Datagrams::Receive, &run));
        run.m_socket->Connect(InetSocketAddress(to.GetAddress(1), 9));
        Simulator::ScheduleNow(&Datagrams::Send, &run);
        double wall = example::Run();
        NS_ABORT_MSG_UNLESS(run.m_received == packets, "a datagram was lost");
        run.m_socket = nullptr;
        Simulator::Destroy();
        return packets / wall;
    }

  private:
    /**
     * \param packets how many
     * \param bytes of payload of each
     * \param socket sends them
     */
    Datagrams(uint32_t packets, uint32_t bytes, Ptr<Socket> socket)
        : m_left(packets),
          m_bytes(bytes),
          m_socket(socket)
    {
        // Headers of UDP, IP and PPP.
        m_interval = DataRate(RATE).CalculateBytesTxTime(bytes + 8 + 20 + 2);
    }

    /// Sends one, and the next one when that has gone.
    void Send()
    {
        m_socket->Send(Create<Packet>(m_bytes));
        if (--m_left > 0)
        {
            Simulator::Schedule(m_interval, &Datagrams::Send, this);
        }
    }

    /// \param socket has some
    void Receive(Ptr<Socket> socket)
    {
        while (socket->Recv())
        {
            m_received++;
        }
    }

    uint32_t m_left;        //!< to send
    uint32_t m_bytes;       //!< of payload
    Ptr<Socket> m_socket;   //!< sends
    Time m_interval;        //!< of a packet on the link
    uint32_t m_received{0}; //!< so far
};

/**
 * The same over NICs and a switch.
 * \param packets how many
 * \param bytes of payload of each
 * \param core whether the production core moves them, instead of messages
 * \return packets for each second of real time, acknowledgements not counted
 */
static double
MeasureNics(uint32_t packets, uint32_t bytes, bool core)
{
    Ptr<RnicFleet> fleet = CreateObject<RnicFleet>();
    fleet->SetAttribute("MtuBytes", UintegerValue(bytes));
    if (core)
    {
        // As much as a process writes at a time.
        const uint32_t response = 64 * bytes;
        fleet->AddConversation(0, 1, 64, response, packets / 64);
    }
    else
    {
        const uint32_t messages = 100;
        for (uint32_t i = 0; i < messages; i++)
        {
            fleet->AddFlow(0, 1, packets / messages * bytes, NanoSeconds(0));
        }
    }
    RnicHelper helper;
    helper.SetPortAttribute("DataRate", StringValue(RATE));
    helper.SetPortAttribute("Delay", TimeValue(NanoSeconds(DELAY_NS)));
    NodeContainer nodes(2);
    helper.InstallStar(nodes, fleet);
    helper.Start();
    double wall = example::Run();
    uint64_t sent = 0;
    for (uint32_t i = 0; i < 2; i++)
    {
        sent += fleet->GetModel().counters(i).data_delivered;
    }
    NS_ABORT_MSG_UNLESS(sent >= packets / 100 * 99, "packets are missing");
    Simulator::Destroy();
    return static_cast<double>(sent) / wall;
}

/**
 * \param values some
 * \return the middle one
 */
static double
Median(std::vector<double> values)
{
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

/**
 * \param name of a row
 * \param values packets a second, by round
 */
static void
Print(const std::string& name, const std::vector<double>& values)
{
    auto [least, most] = std::minmax_element(values.begin(), values.end());
    std::cout << ", \"" << name << "\": {\"packets_per_s\": " << Median(values) << ", \"min\": " << *least
              << ", \"max\": " << *most << "}";
}

int
main(int argc, char* argv[])
{
    uint32_t packets = 200000;
    uint32_t bytes = 1400;
    uint32_t rounds = 5;
    CommandLine cmd(__FILE__);
    cmd.AddValue("packets", "Packets of each run", packets);
    cmd.AddValue("bytes", "Payload bytes of each", bytes);
    cmd.AddValue("rounds", "Runs of each kind, in turns", rounds);
    cmd.Parse(argc, argv);
    NS_ABORT_MSG_IF(packets < 100 || rounds == 0, "at least one run of a hundred packets");
    std::vector<double> udp;
    std::vector<double> flows;
    std::vector<double> core;
    for (uint32_t i = 0; i < rounds; i++)
    {
        udp.push_back(Datagrams::Measure(packets, bytes));
        flows.push_back(MeasureNics(packets, bytes, false));
        core.push_back(MeasureNics(packets, bytes, true));
    }
    std::cout << "{\"packets\": " << packets << ", \"bytes\": " << bytes << ", \"rounds\": " << rounds;
    Print("udp", udp);
    Print("flows", flows);
    Print("core", core);
    std::cout << ", \"flows_ratio\": " << Median(flows) / Median(udp) << ", \"core_ratio\": " << Median(core) / Median(udp)
              << "}" << std::endl;
    return 0;
}
