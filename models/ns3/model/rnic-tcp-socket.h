/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#ifndef RNIC_TCP_SOCKET_H
#define RNIC_TCP_SOCKET_H

#include "rnic-tcp-l4-protocol.h"

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
 *
 * Once it has a peer, or listens, the node's RnicTcpL4Protocol finds it by a hash.
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

    RnicTcpSocket();
    /**
     * \param other a listener, of which this is to be a connection
     */
    RnicTcpSocket(const RnicTcpSocket& other);
    ~RnicTcpSocket() override;

    /**
     * \param local address
     * \param localPort port
     * \param peer address
     * \param peerPort port
     * \return the key of that connection's segments
     */
    static RnicTcpL4Protocol::Key GetKey(Ipv4Address local, uint16_t localPort, Ipv4Address peer, uint16_t peerPort);

    /**
     * \param port where a socket listens
     * \return its key
     */
    static RnicTcpL4Protocol::Key GetListenerKey(uint16_t port);

    /// \return the end point, or null if it is not bound any more
    Ipv4EndPoint* GetEndPoint() const;

    // From TcpSocketBase
    int Connect(const Address& address) override;
    int Listen() override;

  protected:
    void CompleteFork(Ptr<Packet> packet,
                      const TcpHeader& header,
                      const Address& from,
                      const Address& to) override;
    Ptr<TcpSocketBase> Fork() override;
    void DoForwardUp(Ptr<Packet> packet, const Address& from, const Address& to) override;

  private:
    /// Has the node find this socket by its addresses and ports.
    void Register();

    Ptr<RnicTcpL4Protocol> m_finder; //!< that finds it by its key; null before it has one
    RnicTcpL4Protocol::Key m_key;    //!< of its segments
};

} // namespace ns3

#endif /* RNIC_TCP_SOCKET_H */
