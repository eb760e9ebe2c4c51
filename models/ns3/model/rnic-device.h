/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#ifndef RNIC_DEVICE_H
#define RNIC_DEVICE_H

#include "rnic-event.h"
#include "rnic-fleet.h"
#include "rnic-port.h"

#include "ns3/object.h"
#include "ns3/traced-callback.h"

#include <deque>
#include <vector>

namespace ns3
{

/**
 * \ingroup rnic
 * The shell around one modelled NIC: gives it packets and the time, and its port what it has to send. Aggregated to a Node.
 */
class RnicDevice : public Object
{
  public:
    /**
     * \brief Get the type ID.
     * \return the object TypeId
     */
    static TypeId GetTypeId();

    RnicDevice();
    ~RnicDevice() override;

    /**
     * \param fleet the NICs
     * \param node which of them this is
     * \param port where it sends
     */
    void Attach(Ptr<RnicFleet> fleet, uint32_t node, Ptr<RnicPort> port);

    /// \return where it sends
    Ptr<RnicPort> GetPort() const;

    /**
     * \param neighbours every device of the fleet, by node
     */
    void SetNeighbours(std::vector<RnicDevice*> neighbours);

    /// Sends what there is to send, and sets the timer, here and at every node that has become in need of it.
    void Serve();

    /// The same at every node that has become in need of it since.
    void ServeOthers();

    /// \param receiver is given the frames that have a packet
    void SetPacketReceiver(Callback<void, const RnicFrame&> receiver);

    /// \param others carries the processes' TCP, and is served after the nodes
    void SetOthers(Callback<void> others);

    /**
     * Sends a frame with a packet when it is its turn: packets and the NIC's own frames take turns.
     * \param frame the frame
     * \return whether the queue had room for it
     */
    bool SendPacket(const RnicFrame& frame);

    /// \return packets that were dropped for want of room in the queue
    uint64_t GetDropped() const;

    /**
     * A frame arrives.
     * \param frame the frame
     */
    void Receive(const RnicFrame& frame);

  protected:
    void DoDispose() override;

  private:
    /**
     * Serve().
     * \param now the time, in nanoseconds
     */
    void ServeAt(uint64_t now);

    /**
     * ServeOthers().
     * \param now the time, in nanoseconds
     */
    void ServeOthersAt(uint64_t now);

    /**
     * Sends what there is to send, and sets the timer.
     * \param now the time, in nanoseconds
     */
    void ServeThis(uint64_t now);

    /**
     * The port is ready: sends the next frame, if there is one.
     * \param now the time, in nanoseconds
     */
    void SendNext(uint64_t now);

    /// A time has come that the NIC asked for. It may have asked for an earlier one since.
    void HandleTimer();

    Ptr<RnicFleet> m_fleet;                     //!< the NICs
    uint32_t m_node;                            //!< which of them this is
    Ptr<RnicPort> m_port;                       //!< where it sends
    std::vector<RnicDevice*> m_neighbours;      //!< by node; they live as long as this one
    uint64_t m_timer;                           //!< when HandleTimer is to serve the NIC; the greatest number if it is not
    RnicRepeatedEvent m_handleTimer;            //!< the event of HandleTimer
    uint32_t m_queuePackets;                    //!< attribute QueuePackets
    std::deque<RnicFrame> m_queue;              //!< frames with packets that wait for the port
    bool m_packetsTurn;                         //!< if both have something, the next frame is one with a packet
    uint64_t m_dropped;                         //!< packets for which there was no room
    Callback<void, const RnicFrame&> m_packetReceiver; //!< the node's network device
    Callback<void> m_others;                    //!< carries the processes' TCP
    TracedCallback<const RnicFrame&> m_rxTrace; //!< a frame arrives
};

} // namespace ns3

#endif /* RNIC_DEVICE_H */
