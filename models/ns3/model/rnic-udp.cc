/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#include "rnic-udp.h"

#include "rnic-net-device.h"

#include "ns3/abort.h"
#include "ns3/inet-socket-address.h"
#include "ns3/udp-socket-factory.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace ns3
{

NS_OBJECT_ENSURE_REGISTERED(RnicUdp);

/// Of each node's socket.
static const uint16_t PORT = 4000;
/// No number.
static const uint64_t NONE = std::numeric_limits<uint64_t>::max();

TypeId
RnicUdp::GetTypeId()
{
    static TypeId tid =
        TypeId("ns3::RnicUdp").SetParent<Object>().SetGroupName("Rnic").AddConstructor<RnicUdp>();
    return tid;
}

RnicUdp::RnicUdp()
{
}

RnicUdp::~RnicUdp()
{
}

void
RnicUdp::DoDispose()
{
    m_sockets.clear();
    m_fleet = nullptr;
    Object::DoDispose();
}

void
RnicUdp::Install(NodeContainer nodes, const std::vector<Ptr<RnicDevice>>& devices, Ptr<RnicFleet> fleet)
{
    m_fleet = fleet;
    RnicNetDevice::Install(nodes, devices);
    for (uint32_t i = 0; i < nodes.GetN(); i++)
    {
        devices[i]->SetOthers(MakeCallback(&RnicUdp::Serve, this));
        Ptr<Socket> socket = Socket::CreateSocket(nodes.Get(i), UdpSocketFactory::GetTypeId());
        socket->Bind(InetSocketAddress(Ipv4Address::GetAny(), PORT));
        socket->SetRecvCallback(MakeCallback(&RnicUdp::HandleReceive, this));
        m_sockets.push_back(socket);
    }
}

void
RnicUdp::Serve()
{
    netacc::Fleet& model = m_fleet->GetModel();
    for (netacc::UdpDatagram next = model.next_datagram(); next.number != NONE; next = model.next_datagram())
    {
        // A shorter one has room for its number all the same.
        std::vector<uint8_t> bytes(std::max<std::size_t>(next.bytes, sizeof(next.number)));
        std::memcpy(bytes.data(), &next.number, sizeof(next.number));
        Ptr<Packet> packet = Create<Packet>(bytes.data(), static_cast<uint32_t>(bytes.size()));
        // If a queue is full the datagram is lost, as on any host.
        m_sockets[next.from]->SendTo(packet, 0, InetSocketAddress(RnicNetDevice::GetNodeAddress(next.to), PORT));
    }
}

void
RnicUdp::HandleReceive(Ptr<Socket> socket)
{
    while (Ptr<Packet> packet = socket->Recv())
    {
        uint64_t number = NONE;
        uint32_t copied = packet->CopyData(reinterpret_cast<uint8_t*>(&number), sizeof(number));
        NS_ABORT_MSG_UNLESS(copied == sizeof(number), "a datagram without a number");
        m_fleet->GetModel().handle_datagram(number);
    }
}

} // namespace ns3
