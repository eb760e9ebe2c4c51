/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#ifndef RNIC_UDP_H
#define RNIC_UDP_H

#include "rnic-device.h"

#include "ns3/node-container.h"
#include "ns3/socket.h"

#include <vector>

namespace ns3
{

/**
 * \ingroup rnic
 * The datagrams of the processes' kernels: sockets of ns-3's internet module, over the ports of the NICs.
 *
 * The sockets that processes see are in the model. Here each node has one, and each datagram of the model is a packet with its number
 * and its length. The network may lose, double and reorder it.
 */
class RnicUdp : public Object
{
  public:
    /**
     * \brief Get the type ID.
     * \return the object TypeId
     */
    static TypeId GetTypeId();

    RnicUdp();
    ~RnicUdp() override;

    /**
     * Gives the nodes a network device and IP. After the helper has installed their NICs, before it starts them.
     * \param nodes the nodes of the fleet, in its order
     * \param devices their NICs
     * \param fleet the NICs and processes
     */
    void Install(NodeContainer nodes, const std::vector<Ptr<RnicDevice>>& devices, Ptr<RnicFleet> fleet);

  protected:
    void DoDispose() override;

  private:
    /// Sends the datagrams that the model has for the network.
    void Serve();

    /**
     * Datagrams have arrived at a node.
     * \param socket its socket
     */
    void HandleReceive(Ptr<Socket> socket);

    Ptr<RnicFleet> m_fleet;             //!< the model
    std::vector<Ptr<Socket>> m_sockets; //!< by node
};

} // namespace ns3

#endif /* RNIC_UDP_H */
