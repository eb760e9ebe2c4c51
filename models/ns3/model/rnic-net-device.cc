/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#include "rnic-net-device.h"

#include "ns3/abort.h"
#include "ns3/channel.h"
#include "ns3/internet-stack-helper.h"
#include "ns3/ipv4.h"
#include "ns3/ipv4-header.h"
#include "ns3/ipv4-l3-protocol.h"
#include "ns3/log.h"
#include "ns3/tcp-header.h"
#include "ns3/tcp-l4-protocol.h"
#include "ns3/trace-source-accessor.h"
#include "ns3/uinteger.h"

#include <algorithm>

namespace ns3
{

NS_LOG_COMPONENT_DEFINE("RnicNetDevice");
NS_OBJECT_ENSURE_REGISTERED(RnicNetDevice);

/// 10.0.0.1: the address of node 0.
static const uint32_t FIRST_ADDRESS = 0x0a000001;
/// Bytes of a frame on the link besides its packet: preamble, Ethernet header, check sequence, gap.
static const uint32_t FRAME_BYTES = 8 + 14 + 4 + 12;
/// The shortest payload of an Ethernet frame.
static const uint32_t MIN_PAYLOAD_BYTES = 46;

TypeId
RnicNetDevice::GetTypeId()
{
    static TypeId tid = TypeId("ns3::RnicNetDevice")
                            .SetParent<NetDevice>()
                            .SetGroupName("Rnic")
                            .AddConstructor<RnicNetDevice>()
                            .AddAttribute("Mtu",
                                          "Bytes of an IP packet at most.",
                                          UintegerValue(1500),
                                          MakeUintegerAccessor(&RnicNetDevice::SetMtu, &RnicNetDevice::GetMtu),
                                          MakeUintegerChecker<uint16_t>(576))
                            .AddTraceSource("MacTx",
                                            "A packet is given to the port's queue.",
                                            MakeTraceSourceAccessor(&RnicNetDevice::m_txTrace),
                                            "ns3::Packet::TracedCallback")
                            .AddTraceSource("MacRx",
                                            "A packet arrives.",
                                            MakeTraceSourceAccessor(&RnicNetDevice::m_rxTrace),
                                            "ns3::Packet::TracedCallback");
    return tid;
}

RnicNetDevice::RnicNetDevice()
    : m_number(0),
      m_ifIndex(0),
      m_address(Mac48Address::Allocate())
{
}

RnicNetDevice::~RnicNetDevice()
{
}

void
RnicNetDevice::DoDispose()
{
    m_device = nullptr;
    m_node = nullptr;
    m_receive = MakeNullCallback<bool, Ptr<NetDevice>, Ptr<const Packet>, uint16_t, const Address&>();
    NetDevice::DoDispose();
}

Ipv4Address
RnicNetDevice::GetNodeAddress(uint32_t number)
{
    return Ipv4Address(FIRST_ADDRESS + number);
}

void
RnicNetDevice::Install(NodeContainer nodes, const std::vector<Ptr<RnicDevice>>& devices)
{
    NS_ABORT_MSG_UNLESS(nodes.GetN() == devices.size(), "each node has a NIC");
    InternetStackHelper stack;
    stack.SetIpv6StackInstall(false);
    stack.SetTcp("ns3::RnicTcpL4Protocol");
    stack.Install(nodes);
    for (uint32_t i = 0; i < nodes.GetN(); i++)
    {
        Ptr<RnicNetDevice> device = CreateObject<RnicNetDevice>();
        device->Attach(i, devices[i]);
        nodes.Get(i)->AddDevice(device);
        Ptr<Ipv4> ip = nodes.Get(i)->GetObject<Ipv4>();
        uint32_t interface = ip->AddInterface(device);
        ip->AddAddress(interface, Ipv4InterfaceAddress(GetNodeAddress(i), Ipv4Mask("255.0.0.0")));
        ip->SetUp(interface);
    }
}

void
RnicNetDevice::Attach(uint32_t number, Ptr<RnicDevice> device)
{
    m_number = number;
    m_device = device;
    device->SetPacketReceiver(MakeCallback(&RnicNetDevice::Receive, this));
}

bool
RnicNetDevice::Send(Ptr<Packet> packet, const Address& dest, uint16_t protocolNumber)
{
    NS_LOG_FUNCTION(this << packet << dest << protocolNumber);
    Ipv4Header header;
    if (protocolNumber != Ipv4L3Protocol::PROT_NUMBER || packet->PeekHeader(header) == 0)
    {
        return false;
    }
    m_txTrace(packet);
    RnicFrame frame;
    frame.head.src = m_number;
    frame.head.dst = header.GetDestination().Get() - FIRST_ADDRESS;
    // A connection's packets take one path: the first bytes behind the header of IP are the ports.
    uint8_t start[24] = {};
    packet->CopyData(start, sizeof(start));
    frame.head.flow = uint32_t{start[20]} << 24 | uint32_t{start[21]} << 16 | uint32_t{start[22]} << 8 | start[23];
    frame.head.wire_bytes = std::max(packet->GetSize(), MIN_PAYLOAD_BYTES) + FRAME_BYTES;
    frame.packet = packet;
    return m_device->SendPacket(frame);
}

bool
RnicNetDevice::SendFrom(Ptr<Packet> packet, const Address&, const Address& dest, uint16_t protocolNumber)
{
    return Send(packet, dest, protocolNumber);
}

/**
 * ns-3 looks for no acknowledgement in a segment that ends the stream: what it acknowledges would be sent again after a
 * retransmission timeout, and a sender that has closed meanwhile would end its own stream as late.
 * \param packet a packet of IP without options
 * \return what it acknowledges, as a packet of its own; null unless it ends the stream
 */
static Ptr<Packet>
GetAcknowledgement(Ptr<const Packet> packet)
{
    // The protocol is in the header of IP. Flags are behind ports, two numbers and the length of the header.
    uint8_t start[34] = {};
    const uint8_t ending = TcpHeader::FIN | TcpHeader::ACK;
    if (packet->CopyData(start, sizeof(start)) < sizeof(start) || start[9] != TcpL4Protocol::PROT_NUMBER ||
        (start[33] & ending) != ending)
    {
        return nullptr;
    }
    Ptr<Packet> rest = packet->Copy();
    Ipv4Header ip;
    rest->RemoveHeader(ip);
    TcpHeader tcp;
    rest->RemoveHeader(tcp);
    tcp.SetFlags(TcpHeader::ACK);
    Ptr<Packet> acknowledgement = Create<Packet>();
    acknowledgement->AddHeader(tcp);
    ip.SetPayloadSize(acknowledgement->GetSize());
    acknowledgement->AddHeader(ip);
    return acknowledgement;
}

void
RnicNetDevice::Receive(const RnicFrame& frame)
{
    m_rxTrace(frame.packet);
    if (!m_receive.IsNull())
    {
        if (Ptr<Packet> acknowledgement = GetAcknowledgement(frame.packet))
        {
            m_receive(this, acknowledgement, Ipv4L3Protocol::PROT_NUMBER, m_address);
        }
        m_receive(this, frame.packet->Copy(), Ipv4L3Protocol::PROT_NUMBER, m_address);
    }
}

void
RnicNetDevice::SetIfIndex(const uint32_t index)
{
    m_ifIndex = index;
}

uint32_t
RnicNetDevice::GetIfIndex() const
{
    return m_ifIndex;
}

Ptr<Channel>
RnicNetDevice::GetChannel() const
{
    return nullptr;
}

void
RnicNetDevice::SetAddress(Address address)
{
    m_address = Mac48Address::ConvertFrom(address);
}

Address
RnicNetDevice::GetAddress() const
{
    return m_address;
}

bool
RnicNetDevice::SetMtu(const uint16_t mtu)
{
    m_mtu = mtu;
    return true;
}

uint16_t
RnicNetDevice::GetMtu() const
{
    return m_mtu;
}

bool
RnicNetDevice::IsLinkUp() const
{
    return true;
}

void
RnicNetDevice::AddLinkChangeCallback(Callback<void>)
{
    // A cut cable is not noticed here, as behind a switch.
}

bool
RnicNetDevice::IsBroadcast() const
{
    return true;
}

Address
RnicNetDevice::GetBroadcast() const
{
    return Mac48Address::GetBroadcast();
}

bool
RnicNetDevice::IsMulticast() const
{
    return false;
}

Address
RnicNetDevice::GetMulticast(Ipv4Address multicastGroup) const
{
    return Mac48Address::GetMulticast(multicastGroup);
}

Address
RnicNetDevice::GetMulticast(Ipv6Address addr) const
{
    return Mac48Address::GetMulticast(addr);
}

bool
RnicNetDevice::IsBridge() const
{
    return false;
}

bool
RnicNetDevice::IsPointToPoint() const
{
    return false;
}

Ptr<Node>
RnicNetDevice::GetNode() const
{
    return m_node;
}

void
RnicNetDevice::SetNode(Ptr<Node> node)
{
    m_node = node;
}

bool
RnicNetDevice::NeedsArp() const
{
    return false;
}

void
RnicNetDevice::SetReceiveCallback(ReceiveCallback cb)
{
    m_receive = cb;
}

void
RnicNetDevice::SetPromiscReceiveCallback(PromiscReceiveCallback)
{
    // The network delivers to a node what is for it, and nothing else.
}

bool
RnicNetDevice::SupportsSendFrom() const
{
    return false;
}

} // namespace ns3
