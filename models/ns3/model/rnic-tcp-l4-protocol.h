/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#ifndef RNIC_TCP_L4_PROTOCOL_H
#define RNIC_TCP_L4_PROTOCOL_H

#include "ns3/tcp-l4-protocol.h"

#include <array>
#include <unordered_map>

namespace ns3
{

class RnicTcpSocket;

/**
 * \ingroup rnic
 * ns3::TcpL4Protocol, but for how it finds the socket of a segment: by a hash of addresses and ports, where ns-3 looks through all
 * sockets of the node. It finds the same one.
 *
 * Sockets register once their peer is known, or they listen. A segment of no registered socket takes ns-3's way.
 *
 * ns-3 also compares a new connection of a listener with all end points of the node, because no two may have the same addresses
 * and ports. So the end points of such connections lie in shards, which are TCPs of the same node. A connection's addresses and ports
 * decide which one it is, so two that are the same are still found.
 */
class RnicTcpL4Protocol : public TcpL4Protocol
{
  public:
    /**
     * \brief Get the type ID.
     * \return the object TypeId
     */
    static TypeId GetTypeId();

    /// Local address and port, peer's address and port. A listener has its port only.
    struct Key
    {
        uint64_t addresses; //!< local, then the peer's
        uint32_t ports;     //!< local, then the peer's

        /**
         * \param other a key
         * \return whether they are the same
         */
        bool operator==(const Key& other) const
        {
            return addresses == other.addresses && ports == other.ports;
        }
    };

    /**
     * Segments of this key are the socket's from now on.
     * \param key the key
     * \param socket the socket
     */
    void Register(const Key& key, RnicTcpSocket* socket);

    /**
     * Segments of this key are not that socket's any more. Without effect if they are another one's by now.
     * \param key the key
     * \param socket the socket
     */
    void Unregister(const Key& key, RnicTcpSocket* socket);

    /**
     * \param key of a listener's new connection
     * \return the TCP that is to have its end point
     */
    Ptr<TcpL4Protocol> GetShard(const Key& key);

    using TcpL4Protocol::Receive;

    // From TcpL4Protocol
    enum IpL4Protocol::RxStatus Receive(Ptr<Packet> packet,
                                        const Ipv4Header& header,
                                        Ptr<Ipv4Interface> interface) override;

  protected:
    void DoDispose() override;

  private:
    /// Hashes a key.
    struct Hash
    {
        /**
         * \param key a key
         * \return its hash
         */
        std::size_t operator()(const Key& key) const
        {
            uint64_t mixed = (key.addresses ^ uint64_t{key.ports} << 16) * 0x9e3779b97f4a7c15;
            return mixed ^ mixed >> 32 ^ key.ports;
        }
    };

    /**
     * \param key a key
     * \return the socket that has it, if that is still bound
     */
    RnicTcpSocket* Find(const Key& key) const;

    /// Of connections of listeners. Arbitrary: 20,000 connections are 80 for each.
    static const std::size_t SHARDS = 256;

    std::unordered_map<Key, RnicTcpSocket*, Hash> m_registered; //!< sockets unregister before they are no more
    std::array<Ptr<TcpL4Protocol>, SHARDS> m_shards;            //!< null before the first connection of each
};

} // namespace ns3

#endif /* RNIC_TCP_L4_PROTOCOL_H */
