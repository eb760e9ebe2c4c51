/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#include "rnic-tcp-socket.h"

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
