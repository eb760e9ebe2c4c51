/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#ifndef RNIC_TCP_SOCKET_H
#define RNIC_TCP_SOCKET_H

#include "ns3/node.h"
#include "ns3/tcp-socket-base.h"

namespace ns3
{

/**
 * \ingroup rnic
 * ns-3's TCP, but for the end of a stream that both sides have ended.
 *
 * In LAST_ACK and CLOSING ns-3 takes any acknowledgement for that of its FIN, also one that is late, and forgets a FIN that
 * was lost: its peer waits for it for ever. Here only an acknowledgement of the FIN counts (RFC 9293, 3.10.7.4). And in
 * CLOSING ns-3 does not report the peer's end of the stream until its own FIN is acknowledged, which is never if that was
 * lost and the peer's TIME_WAIT is over. Here it is reported at once.
 */
class RnicTcpSocket : public TcpSocketBase
{
  public:
    /**
     * \brief Get the type ID.
     * \return the object TypeId
     */
    static TypeId GetTypeId();

    /**
     * \param node whose TCP it is, with its attributes: estimator, congestion control, recovery
     * \return a socket of that node
     */
    static Ptr<RnicTcpSocket> Create(Ptr<Node> node);

  protected:
    Ptr<TcpSocketBase> Fork() override;
    void DoForwardUp(Ptr<Packet> packet, const Address& from, const Address& to) override;
};

} // namespace ns3

#endif /* RNIC_TCP_SOCKET_H */
