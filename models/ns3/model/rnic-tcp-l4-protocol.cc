/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#include "rnic-tcp-l4-protocol.h"

#include "rnic-tcp-socket.h"

#include "ns3/ipv4-end-point.h"
#include "ns3/ipv4-header.h"
#include "ns3/ipv4-interface.h"
#include "ns3/node.h"
#include "ns3/tcp-header.h"

namespace ns3
{

NS_OBJECT_ENSURE_REGISTERED(RnicTcpL4Protocol);

TypeId
RnicTcpL4Protocol::GetTypeId()
{
    static TypeId tid = TypeId("ns3::RnicTcpL4Protocol")
                            .SetParent<TcpL4Protocol>()
                            .SetGroupName("Rnic")
                            .AddConstructor<RnicTcpL4Protocol>();
    return tid;
}

void
RnicTcpL4Protocol::Register(const Key& key, RnicTcpSocket* socket)
{
    m_registered[key] = socket;
}

void
RnicTcpL4Protocol::Unregister(const Key& key, RnicTcpSocket* socket)
{
    auto found = m_registered.find(key);
    if (found != m_registered.end() && found->second == socket)
    {
        m_registered.erase(found);
    }
}

RnicTcpSocket*
RnicTcpL4Protocol::Find(const Key& key) const
{
    auto found = m_registered.find(key);
    return found != m_registered.end() && found->second->GetEndPoint() ? found->second : nullptr;
}

Ptr<TcpL4Protocol>
RnicTcpL4Protocol::GetShard(const Key& key)
{
    Ptr<TcpL4Protocol>& shard = m_shards[Hash()(key) % SHARDS];
    if (!shard)
    {
        shard = CreateObject<TcpL4Protocol>();
        shard->SetNode(GetObject<Node>());
        shard->SetDownTarget(GetDownTarget());
    }
    return shard;
}

void
RnicTcpL4Protocol::DoDispose()
{
    for (Ptr<TcpL4Protocol>& shard : m_shards)
    {
        if (shard)
        {
            shard->Dispose();
            shard = nullptr;
        }
    }
    TcpL4Protocol::DoDispose();
}

enum IpL4Protocol::RxStatus
RnicTcpL4Protocol::Receive(Ptr<Packet> packet, const Ipv4Header& header, Ptr<Ipv4Interface> interface)
{
    Ipv4Address local = header.GetDestination();
    Ipv4Address peer = header.GetSource();
    TcpHeader tcp;
    IpL4Protocol::RxStatus status = PacketReceived(packet, tcp, peer, local);
    if (status != IpL4Protocol::RX_OK)
    {
        return status;
    }
    RnicTcpSocket* socket = Find(RnicTcpSocket::GetKey(local, tcp.GetDestinationPort(), peer, tcp.GetSourcePort()));
    if (!socket)
    {
        socket = Find(RnicTcpSocket::GetListenerKey(tcp.GetDestinationPort()));
    }
    if (!socket)
    {
        return TcpL4Protocol::Receive(packet, header, interface);
    }
    socket->GetEndPoint()->ForwardUp(packet, header, tcp.GetSourcePort(), interface);
    return IpL4Protocol::RX_OK;
}

} // namespace ns3
