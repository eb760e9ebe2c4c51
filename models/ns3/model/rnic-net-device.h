/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#ifndef RNIC_NET_DEVICE_H
#define RNIC_NET_DEVICE_H

#include "rnic-device.h"

#include "ns3/mac48-address.h"
#include "ns3/net-device.h"
#include "ns3/node-container.h"
#include "ns3/node.h"

#include <vector>

namespace ns3
{

/**
 * \ingroup rnic
 * The Ethernet side of a NIC: what the kernel's IP sends over the port that the NIC's queue pairs use as well.
 *
 * For IP all nodes are on one link. The address of node n is FirstAddress + n, so there is nothing to resolve.
 */
class RnicNetDevice : public NetDevice
{
  public:
    /**
     * \brief Get the type ID.
     * \return the object TypeId
     */
    static TypeId GetTypeId();

    RnicNetDevice();
    ~RnicNetDevice() override;

    /**
     * \param number of the node among the fleet's
     * \return its address
     */
    static Ipv4Address GetNodeAddress(uint32_t number);

    /**
     * Gives each node a network device and IP. After the helper has installed their NICs, before it starts them.
     * \param nodes the nodes of the fleet, in its order
     * \param devices their NICs
     */
    static void Install(NodeContainer nodes, const std::vector<Ptr<RnicDevice>>& devices);

    /**
     * \param number of the node among the fleet's
     * \param device the shell that has the port
     */
    void Attach(uint32_t number, Ptr<RnicDevice> device);

    void SetIfIndex(const uint32_t index) override;
    uint32_t GetIfIndex() const override;
    Ptr<Channel> GetChannel() const override;
    void SetAddress(Address address) override;
    Address GetAddress() const override;
    bool SetMtu(const uint16_t mtu) override;
    uint16_t GetMtu() const override;
    bool IsLinkUp() const override;
    void AddLinkChangeCallback(Callback<void> callback) override;
    bool IsBroadcast() const override;
    Address GetBroadcast() const override;
    bool IsMulticast() const override;
    Address GetMulticast(Ipv4Address multicastGroup) const override;
    Address GetMulticast(Ipv6Address addr) const override;
    bool IsBridge() const override;
    bool IsPointToPoint() const override;
    bool Send(Ptr<Packet> packet, const Address& dest, uint16_t protocolNumber) override;
    bool SendFrom(Ptr<Packet> packet,
                  const Address& source,
                  const Address& dest,
                  uint16_t protocolNumber) override;
    Ptr<Node> GetNode() const override;
    void SetNode(Ptr<Node> node) override;
    bool NeedsArp() const override;
    void SetReceiveCallback(ReceiveCallback cb) override;
    void SetPromiscReceiveCallback(PromiscReceiveCallback cb) override;
    bool SupportsSendFrom() const override;

  protected:
    void DoDispose() override;

  private:
    /**
     * A frame with a packet arrives.
     * \param frame the frame
     */
    void Receive(const RnicFrame& frame);

    uint32_t m_number;           //!< of the node among the fleet's
    Ptr<RnicDevice> m_device;    //!< the shell that has the port
    Ptr<Node> m_node;            //!< where this is
    uint32_t m_ifIndex;          //!< as the node counts
    uint16_t m_mtu;              //!< attribute Mtu
    Mac48Address m_address;      //!< for those who ask
    ReceiveCallback m_receive;   //!< the kernel's IP
    TracedCallback<Ptr<const Packet>> m_txTrace; //!< a packet is given to the port's queue
    TracedCallback<Ptr<const Packet>> m_rxTrace; //!< a packet arrives
};

} // namespace ns3

#endif /* RNIC_NET_DEVICE_H */
