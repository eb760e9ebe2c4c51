/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#include "rnic-tcp-socket.h"

#include "ns3/inet-socket-address.h"
#include "ns3/ipv4-end-point.h"
#include "ns3/log.h"
#include "ns3/object-factory.h"
#include "ns3/rtt-estimator.h"
#include "ns3/tcp-congestion-ops.h"
#include "ns3/tcp-header.h"
#include "ns3/tcp-l4-protocol.h"
#include "ns3/tcp-recovery-ops.h"

namespace ns3
{

NS_LOG_COMPONENT_DEFINE("RnicTcpSocket");
NS_OBJECT_ENSURE_REGISTERED(RnicTcpSocket);

TypeId
RnicTcpSocket::GetTypeId()
{
    static TypeId tid =
        TypeId("ns3::RnicTcpSocket").SetParent<TcpSocketBase>().SetGroupName("Rnic").AddConstructor<RnicTcpSocket>();
    return tid;
}

/**
 * \param tcp whose attribute it is
 * \param name of the attribute, which is a type
 * \return an object of that type
 */
template <class T>
static Ptr<T>
CreateChosen(Ptr<TcpL4Protocol> tcp, const std::string& name)
{
    TypeIdValue type;
    tcp->GetAttribute(name, type);
    ObjectFactory factory;
    factory.SetTypeId(type.Get());
    return factory.Create<T>();
}

Ptr<RnicTcpSocket>
RnicTcpSocket::Create(Ptr<Node> node)
{
    // As TcpL4Protocol::CreateSocket, which has one class of sockets.
    Ptr<TcpL4Protocol> tcp = node->GetObject<TcpL4Protocol>();
    Ptr<RnicTcpSocket> socket = CreateObject<RnicTcpSocket>();
    socket->SetNode(node);
    socket->SetTcp(tcp);
    socket->SetRtt(CreateChosen<RttEstimator>(tcp, "RttEstimatorType"));
    socket->SetCongestionControlAlgorithm(CreateChosen<TcpCongestionOps>(tcp, "SocketType"));
    socket->SetRecoveryAlgorithm(CreateChosen<TcpRecoveryOps>(tcp, "RecoveryType"));
    tcp->AddSocket(socket);
    return socket;
}

RnicTcpSocket::RnicTcpSocket()
    : m_key()
{
}

RnicTcpSocket::RnicTcpSocket(const RnicTcpSocket& other)
    : TcpSocketBase(other),
      m_key()
{
}

RnicTcpSocket::~RnicTcpSocket()
{
    if (m_finder)
    {
        m_finder->Unregister(m_key, this);
    }
}

RnicTcpL4Protocol::Key
RnicTcpSocket::GetKey(Ipv4Address local, uint16_t localPort, Ipv4Address peer, uint16_t peerPort)
{
    return {uint64_t{local.Get()} << 32 | peer.Get(), uint32_t{localPort} << 16 | peerPort};
}

RnicTcpL4Protocol::Key
RnicTcpSocket::GetListenerKey(uint16_t port)
{
    return {0, uint32_t{port} << 16};
}

Ipv4EndPoint*
RnicTcpSocket::GetEndPoint() const
{
    return m_endPoint;
}

void
RnicTcpSocket::Register()
{
    Ptr<RnicTcpL4Protocol> finder = m_node->GetObject<RnicTcpL4Protocol>();
    if (!finder || !m_endPoint)
    {
        return;
    }
    m_key = m_state == LISTEN ? GetListenerKey(m_endPoint->GetLocalPort())
                              : GetKey(m_endPoint->GetLocalAddress(),
                                       m_endPoint->GetLocalPort(),
                                       m_endPoint->GetPeerAddress(),
                                       m_endPoint->GetPeerPort());
    m_finder = finder;
    finder->Register(m_key, this);
}

int
RnicTcpSocket::Connect(const Address& address)
{
    int result = TcpSocketBase::Connect(address);
    Register();
    return result;
}

int
RnicTcpSocket::Listen()
{
    int result = TcpSocketBase::Listen();
    Register();
    return result;
}

void
RnicTcpSocket::CompleteFork(Ptr<Packet> packet, const TcpHeader& header, const Address& from, const Address& to)
{
    Ptr<RnicTcpL4Protocol> finder = m_node->GetObject<RnicTcpL4Protocol>();
    if (finder && InetSocketAddress::IsMatchingType(to))
    {
        InetSocketAddress local = InetSocketAddress::ConvertFrom(to);
        InetSocketAddress peer = InetSocketAddress::ConvertFrom(from);
        m_tcp = finder->GetShard(GetKey(local.GetIpv4(), local.GetPort(), peer.GetIpv4(), peer.GetPort()));
    }
    TcpSocketBase::CompleteFork(packet, header, from, to);
    Register();
}

Ptr<TcpSocketBase>
RnicTcpSocket::Fork()
{
    return CopyObject<RnicTcpSocket>(this);
}

void
RnicTcpSocket::DoForwardUp(Ptr<Packet> packet, const Address& from, const Address& to)
{
    if (m_state == LAST_ACK || m_state == CLOSING)
    {
        TcpHeader header;
        packet->PeekHeader(header);
        // The FIN is after all bytes: its acknowledgement is past what they end at.
        if ((header.GetFlags() & TcpHeader::ACK) && !(header.GetFlags() & TcpHeader::RST) &&
            header.GetAckNumber() <= m_tcb->m_highTxMark)
        {
            NS_LOG_LOGIC("not of the FIN: " << header);
            if (header.GetFlags() & TcpHeader::FIN)
            {
                // The peer's FIN again, because its acknowledgement was lost. Our answer acknowledges both.
                SendEmptyPacket(TcpHeader::FIN);
            }
            return;
        }
    }
    TcpSocketBase::DoForwardUp(packet, from, to);
    if (m_state == CLOSING && !m_closeNotified)
    {
        m_closeNotified = true;
        NotifyNormalClose();
    }
}

} // namespace ns3
