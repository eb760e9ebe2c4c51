/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#include "rnic-tcp.h"

#include "rnic-net-device.h"
#include "rnic-tcp-socket.h"

#include "ns3/abort.h"
#include "ns3/double.h"
#include "ns3/inet-socket-address.h"
#include "ns3/internet-stack-helper.h"
#include "ns3/ipv4.h"
#include "ns3/log.h"
#include "ns3/simulator.h"
#include "ns3/tcp-header.h"
#include "ns3/tcp-l4-protocol.h"
#include "ns3/tcp-option-ts.h"
#include "ns3/uinteger.h"

#include <algorithm>
#include <limits>

namespace ns3
{

NS_LOG_COMPONENT_DEFINE("RnicTcp");
NS_OBJECT_ENSURE_REGISTERED(RnicTcp);

/// Where servers listen.
static const uint16_t SERVER_PORT = 5000;
/// The first port of clients. From here to the last one there are 64,000 for each node.
static const uint16_t FIRST_CLIENT_PORT = 1536;
/// How many they are.
static const uint32_t CLIENT_PORTS = 65536 - FIRST_CLIENT_PORT;
/// Headers of IP and TCP with time stamps: what a segment has less than a packet.
static const uint32_t HEADER_BYTES = 20 + 20 + 12;
/// Until the first SYN is sent again: Linux's (TCP_TIMEOUT_INIT, RFC 6298), where ns-3 has three seconds. It doubles each time.
static const Time CONNECT_TIMEOUT = Seconds(1);
/// SYNs of a connection: Linux's (tcp_syn_retries, and the first), where ns-3 has 6.
static const uint32_t CONNECT_TRIES = 7;
/// Bytes moved at a time. Arbitrary.
static const uint32_t CHUNK_BYTES = 65536;
/// Of a socket's buffer: its window has no more, whatever the scale (RFC 7323).
static const uint32_t MAX_BUFFER_BYTES = 1 << 29;
/// No number.
static const uint32_t NONE = 0xffffffff;

TypeId
RnicTcp::GetTypeId()
{
    static TypeId tid =
        TypeId("ns3::RnicTcp")
            .SetParent<Object>()
            .SetGroupName("Rnic")
            .AddConstructor<RnicTcp>()
            .AddAttribute("ConnectInterval",
                          "Time between the beginnings of connections, so that they do not all begin at once.",
                          TimeValue(NanoSeconds(500)),
                          MakeTimeAccessor(&RnicTcp::m_interval),
                          MakeTimeChecker(Time(0)))
            .AddAttribute("TimeWait",
                          "How long a closed connection's socket and port are kept by who has closed first: longer than a segment is "
                          "under way. Linux keeps them for a minute (TCP_TIMEWAIT_LEN), which would cost ns-3 memory. "
                          "Whether clients run out of ports depends on it.",
                          TimeValue(MilliSeconds(2)),
                          MakeTimeAccessor(&RnicTcp::m_timeWait),
                          MakeTimeChecker(Time(0)))
            .AddAttribute("MinRto",
                          "The shortest retransmission timeout: Linux's (TCP_RTO_MIN), where RFC 6298 has a second.",
                          TimeValue(MilliSeconds(200)),
                          MakeTimeAccessor(&RnicTcp::m_minRto),
                          MakeTimeChecker(Time(0)))
            .AddAttribute("DelayedAck",
                          "How long an acknowledgement waits for company: Linux's shortest (TCP_DELACK_MIN).",
                          TimeValue(MilliSeconds(40)),
                          MakeTimeAccessor(&RnicTcp::m_delayedAck),
                          MakeTimeChecker(Time(0)))
            .AddAttribute("DataRetries",
                          "How often a segment is sent again before TCP gives up: Linux's (tcp_retries2), where ns-3 has 6.",
                          UintegerValue(15),
                          MakeUintegerAccessor(&RnicTcp::m_dataRetries),
                          MakeUintegerChecker<uint32_t>());
    return tid;
}

RnicTcp::RnicTcp()
    : m_bufferBytes(0),
      m_connected(0),
      m_failed(0),
      m_serving(false)
{
}

RnicTcp::~RnicTcp()
{
}

void
RnicTcp::DoDispose()
{
    m_wires.clear();
    m_connecting.clear();
    m_listeners.clear();
    m_devices.clear();
    m_fleet = nullptr;
    Object::DoDispose();
}

void
RnicTcp::Install(NodeContainer nodes, const std::vector<Ptr<RnicDevice>>& devices, Ptr<RnicFleet> fleet)
{
    m_nodes = nodes;
    m_devices = devices;
    m_fleet = fleet;
    m_bufferBytes = static_cast<uint32_t>(fleet->GetModel().tcp_buffer_bytes());
    NS_ABORT_MSG_IF(m_bufferBytes == 0, "the fleet's TCP is in memory: see RnicFleet::TcpBufferBytes");
    NS_ABORT_MSG_IF(m_bufferBytes > MAX_BUFFER_BYTES, "TCP's buffers have " << MAX_BUFFER_BYTES << " bytes at most");
    m_nextPort.assign(nodes.GetN(), FIRST_CLIENT_PORT);
    m_buffer.resize(CHUNK_BYTES);
    RnicNetDevice::Install(nodes, devices);
    for (const Ptr<RnicDevice>& device : devices)
    {
        device->SetOthers(MakeCallback(&RnicTcp::Serve, this));
    }
    Simulator::ScheduleNow(&RnicTcp::Serve, this);
}

uint32_t
RnicTcp::GetConnected() const
{
    return m_connected;
}

uint32_t
RnicTcp::GetFailed() const
{
    return m_failed;
}

void
RnicTcp::Serve()
{
    if (m_serving)
    {
        return;
    }
    m_serving = true;
    netacc::Fleet& model = m_fleet->GetModel();
    for (netacc::WireSpec next = model.next_connect(); next.number != NONE; next = model.next_connect())
    {
        Time at = std::max(m_nextConnect, Simulator::Now());
        m_nextConnect = at + m_interval;
        Simulator::Schedule(at - Simulator::Now(), &RnicTcp::Connect, this, next.number, next.client, next.server);
    }
    for (uint32_t number = model.next_wire(); number != NONE; number = model.next_wire())
    {
        Pump(number);
    }
    m_serving = false;
}

/**
 * \param client address of who connects
 * \param server number of the node that accepts
 * \return a key that differs for each connection: a client's ports are distinct
 */
static uint64_t
GetKey(const InetSocketAddress& client, uint32_t server)
{
    return uint64_t{client.GetIpv4().Get()} << 40 ^ uint64_t{client.GetPort()} << 24 ^ server;
}

void
RnicTcp::Connect(uint32_t number, uint32_t client, uint32_t server)
{
    NS_LOG_FUNCTION(this << number << client << server);
    if (m_listeners.find(server) == m_listeners.end())
    {
        Ptr<Socket> listener = RnicTcpSocket::Create(m_nodes.Get(server));
        Configure(listener);
        listener->Bind(InetSocketAddress(Ipv4Address::GetAny(), SERVER_PORT));
        listener->Listen();
        listener->SetAcceptCallback(MakeNullCallback<bool, Ptr<Socket>, const Address&>(),
                                    MakeCallback(&RnicTcp::HandleAccept, this).Bind(server));
        m_listeners[server] = listener;
    }
    m_wires.resize(std::max<std::size_t>(m_wires.size(), number + 1));
    Forget(number);
    Ptr<Socket> socket = RnicTcpSocket::Create(m_nodes.Get(client));
    Configure(socket);
    Adopt(number, 0, socket);
    for (uint32_t tries = 0; tries < CLIENT_PORTS; tries++)
    {
        uint16_t port = m_nextPort[client]++;
        m_nextPort[client] = std::max(m_nextPort[client], FIRST_CLIENT_PORT);
        InetSocketAddress local(RnicNetDevice::GetNodeAddress(client), port);
        if (socket->Bind(local) == 0)
        {
            m_connecting[GetKey(local, server)] = {number, socket};
            socket->Connect(InetSocketAddress(RnicNetDevice::GetNodeAddress(server), SERVER_PORT));
            return;
        }
    }
    // As connect(2) with EADDRNOTAVAIL.
    NS_LOG_WARN("node " << client << " has no more ports for clients");
    HandleFailure(number, socket);
}

void
RnicTcp::Forget(uint32_t number)
{
    Wire old = m_wires[number];
    m_wires[number] = Wire{};
    for (const Ptr<Socket>& socket : old.sockets)
    {
        if (socket && !old.failed)
        {
            // Both have ended, if TCP has not given up: unless the model has reset the connection, which has no packet.
            socket->Close();
        }
    }
}

bool
RnicTcp::IsOf(uint32_t number, Ptr<Socket> socket) const
{
    const Wire& wire = m_wires[number];
    return socket == wire.sockets[0] || socket == wire.sockets[1];
}

void
RnicTcp::Configure(Ptr<Socket> socket)
{
    uint32_t mtu = socket->GetNode()->GetDevice(1)->GetMtu();
    socket->SetAttribute("SegmentSize", UintegerValue(mtu - HEADER_BYTES));
    socket->SetAttribute("SndBufSize", UintegerValue(m_bufferBytes));
    socket->SetAttribute("RcvBufSize", UintegerValue(GetReceiveBytes()));
    socket->SetAttribute("DelAckTimeout", TimeValue(m_delayedAck));
    socket->SetAttribute("MinRto", TimeValue(m_minRto));
    socket->SetAttribute("DataRetries", UintegerValue(m_dataRetries));
    socket->SetAttribute("ConnTimeout", TimeValue(CONNECT_TIMEOUT));
    socket->SetAttribute("ConnCount", UintegerValue(CONNECT_TRIES));
    // ns-3 waits for twice that.
    socket->SetAttribute("MaxSegLifetime", DoubleValue(m_timeWait.GetSeconds() / 2));
}

uint32_t
RnicTcp::GetReceiveBytes() const
{
    return 2 * m_bufferBytes;
}

void
RnicTcp::Adopt(uint32_t number, uint32_t side, Ptr<Socket> socket)
{
    m_wires[number].sockets[side] = socket;
    socket->SetConnectCallback(MakeCallback(&RnicTcp::HandleConnect, this).Bind(number),
                               MakeCallback(&RnicTcp::HandleFailure, this).Bind(number));
    socket->SetRecvCallback(MakeCallback(&RnicTcp::HandleReceive, this).Bind(number));
    socket->SetSendCallback(MakeCallback(&RnicTcp::HandleRoom, this).Bind(number));
    socket->SetCloseCallbacks(MakeCallback(&RnicTcp::HandleEnd, this).Bind(number, side),
                              MakeCallback(&RnicTcp::HandleFailure, this).Bind(number));
}

void
RnicTcp::HandleAccept(uint32_t server, Ptr<Socket> socket, const Address& from)
{
    auto found = m_connecting.find(GetKey(InetSocketAddress::ConvertFrom(from), server));
    NS_ABORT_MSG_IF(found == m_connecting.end(), "a connection that no process has requested");
    auto [number, client] = found->second;
    m_connecting.erase(found);
    if (!IsOf(number, client))
    {
        // Its client has given up.
        socket->Close();
        return;
    }
    Adopt(number, 1, socket);
    HandleConnect(number, socket);
}

void
RnicTcp::HandleConnect(uint32_t number, Ptr<Socket> socket)
{
    if (!IsOf(number, socket))
    {
        return;
    }
    Wire& wire = m_wires[number];
    // The server may not have accepted yet: data completes a handshake whose last packet was lost, or Confirm does.
    if (!wire.connected && socket == wire.sockets[0])
    {
        wire.connected = true;
        m_connected++;
        m_fleet->GetModel().handle_connected(number, Now());
        Simulator::Schedule(m_minRto, &RnicTcp::Confirm, this, number, socket);
    }
    Pump(number);
    Attend();
}

void
RnicTcp::Confirm(uint32_t number, Ptr<Socket> socket)
{
    const Wire& wire = m_wires[number];
    if (wire.failed || wire.sockets[1] || !IsOf(number, socket))
    {
        return;
    }
    NS_LOG_FUNCTION(this << number);
    Address address;
    wire.sockets[0]->GetSockName(address);
    InetSocketAddress local = InetSocketAddress::ConvertFrom(address);
    wire.sockets[0]->GetPeerName(address);
    InetSocketAddress peer = InetSocketAddress::ConvertFrom(address);
    uint32_t window = GetReceiveBytes();
    while (window > std::numeric_limits<uint16_t>::max())
    {
        // As sockets choose their window's scale.
        window /= 2;
    }
    // Both sides begin to count at 0, and their SYNs are the first of what they count.
    TcpHeader header;
    header.SetSourcePort(local.GetPort());
    header.SetDestinationPort(peer.GetPort());
    header.SetSequenceNumber(SequenceNumber32(1));
    header.SetAckNumber(SequenceNumber32(1));
    header.SetFlags(TcpHeader::ACK);
    header.SetWindowSize(static_cast<uint16_t>(window));
    Ptr<TcpOptionTS> stamp = CreateObject<TcpOptionTS>();
    stamp->SetTimestamp(TcpOptionTS::NowToTsValue());
    // A round trip of no time is none that counts.
    stamp->SetEcho(TcpOptionTS::NowToTsValue());
    header.AppendOption(stamp);
    Ptr<TcpL4Protocol> tcp = wire.sockets[0]->GetNode()->GetObject<TcpL4Protocol>();
    tcp->SendPacket(Create<Packet>(), header, local.GetIpv4(), peer.GetIpv4());
    Simulator::Schedule(m_minRto, &RnicTcp::Confirm, this, number, socket);
}

void
RnicTcp::HandleReceive(uint32_t number, Ptr<Socket> socket)
{
    if (!IsOf(number, socket))
    {
        return;
    }
    Pump(number);
    Attend();
}

void
RnicTcp::HandleRoom(uint32_t number, Ptr<Socket> socket, uint32_t)
{
    if (!IsOf(number, socket))
    {
        return;
    }
    Pump(number);
    Attend();
}

void
RnicTcp::HandleEnd(uint32_t number, uint32_t side, Ptr<Socket> socket)
{
    if (!IsOf(number, socket))
    {
        return;
    }
    Pump(number);
    m_fleet->GetModel().handle_wire_end(number, side, Now());
    Attend();
}

void
RnicTcp::HandleFailure(uint32_t number, Ptr<Socket> socket)
{
    if (!IsOf(number, socket) || m_wires[number].failed)
    {
        return;
    }
    m_wires[number].failed = true;
    m_failed++;
    m_fleet->GetModel().handle_wire_failure(number, Now());
    Attend();
}

uint64_t
RnicTcp::Now()
{
    return static_cast<uint64_t>(Simulator::Now().GetNanoSeconds());
}

void
RnicTcp::Attend()
{
    // Any device serves all nodes that have become in need of it, and this.
    m_devices.front()->ServeOthers();
}

void
RnicTcp::Pump(uint32_t number)
{
    if (number >= m_wires.size() || !m_wires[number].connected || m_wires[number].failed)
    {
        return;
    }
    for (uint32_t side = 0; side < 2; side++)
    {
        if (m_wires[number].sockets[side])
        {
            PumpIn(number, side);
            PumpOut(number, side);
        }
    }
}

void
RnicTcp::PumpOut(uint32_t number, uint32_t side)
{
    netacc::Fleet& model = m_fleet->GetModel();
    Ptr<Socket> socket = m_wires[number].sockets[side];
    while (uint32_t room = std::min(socket->GetTxAvailable(), CHUNK_BYTES))
    {
        auto count = static_cast<uint32_t>(model.poll_wire(number, side, {m_buffer.data(), room}));
        if (count == 0)
        {
            break;
        }
        int sent = socket->Send(m_buffer.data(), count, 0);
        NS_ABORT_MSG_UNLESS(sent == static_cast<int>(count), "a socket with room refuses bytes");
    }
    m_wires[number].ending[side] |= model.poll_wire_end(number, side);
    // All sent bytes have to be acknowledged first: else ns-3 would neither end the stream now nor later.
    if (m_wires[number].ending[side] && socket->GetTxAvailable() == m_bufferBytes)
    {
        m_wires[number].ending[side] = false;
        // Once the packet is done with that has led here: ns-3 stops the timer that would repeat a FIN which is sent while the
        // last acknowledgement is being received.
        Simulator::ScheduleNow(&Socket::ShutdownSend, socket);
    }
}

void
RnicTcp::PumpIn(uint32_t number, uint32_t side)
{
    netacc::Fleet& model = m_fleet->GetModel();
    Ptr<Socket> socket = m_wires[number].sockets[side];
    while (socket->GetRxAvailable() > 0)
    {
        auto room = static_cast<uint32_t>(std::min<std::size_t>(model.wire_room(number, side), CHUNK_BYTES));
        Ptr<Packet> packet = room > 0 ? socket->Recv(room, 0) : nullptr;
        if (!packet || packet->GetSize() == 0)
        {
            return;
        }
        uint32_t count = packet->CopyData(m_buffer.data(), room);
        model.handle_wire(number, side, Now(), {m_buffer.data(), count});
    }
}

} // namespace ns3
