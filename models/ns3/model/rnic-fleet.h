/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#ifndef RNIC_FLEET_H
#define RNIC_FLEET_H

#include "rnic-frame.h"

#include "ns3/data-rate.h"
#include "ns3/nstime.h"
#include "ns3/object.h"

#include <optional>
#include <vector>

namespace ns3
{

/**
 * \ingroup rnic
 * All modelled NICs of a simulation: configuration as attributes, and the way to the model, which is in Rust.
 *
 * The model is a state machine. It is called with the time and calls nobody back.
 */
class RnicFleet : public Object
{
  public:
    /// How queue pairs are kept from sending too fast.
    enum RateControl
    {
        UNLIMITED,    //!< they are not
        FIXED_WINDOW, //!< a window of WindowBytes
        DCQCN_PAPER,  //!< DCQCN with the parameters of its paper
        DCQCN_HPCC,   //!< DCQCN with the parameters of the HPCC authors
    };

    /**
     * \brief Get the type ID.
     * \return the object TypeId
     */
    static TypeId GetTypeId();

    RnicFleet();
    ~RnicFleet() override;

    /**
     * Adds a message.
     * \param src node that sends
     * \param dst node that receives
     * \param bytes of the message
     * \param start when it is posted
     * \return its number
     */
    uint32_t AddFlow(uint32_t src, uint32_t dst, uint32_t bytes, Time start);

    /**
     * Adds a conversation of the production core: a client that asks a server, again when it has the answer. All of a
     * simulation are flows, or all are conversations.
     * \param client node that asks
     * \param server node that answers
     * \param requestBytes of each request
     * \param responseBytes of each response
     * \param count how many requests
     * \return its number
     */
    uint32_t AddConversation(uint32_t client,
                             uint32_t server,
                             uint32_t requestBytes,
                             uint32_t responseBytes,
                             uint32_t count);

    /**
     * Makes the NICs, when all flows or conversations are known. A description that makes no sense ends the program with what is wrong.
     * \param nodes how many
     */
    void Build(uint32_t nodes);

    /**
     * Takes NICs that are made already, in place of Build.
     * \param model the NICs, with what they carry
     */
    void Adopt(rust::Box<netacc::Fleet> model);

    /// \return whether the NICs are there
    bool IsBuilt() const;

    /// \return the model; not before Build
    netacc::Fleet& GetModel();

    /// \return the NIC's parameters, as the attributes say
    netacc::NicParameters GetParameters() const;

    /// \return the conversations
    const std::vector<netacc::ConversationSpec>& GetConversations() const;

    /// \return how the core is set up, and who carries TCP
    netacc::StackSpec GetStack() const;

    /// \return the messages
    const std::vector<netacc::FlowSpec>& GetFlows() const;

  protected:
    void DoDispose() override;

  private:
    std::optional<rust::Box<netacc::Fleet>> m_model; //!< the NICs
    std::vector<netacc::FlowSpec> m_flows;           //!< the messages
    std::vector<netacc::ConversationSpec> m_conversations; //!< the conversations
    uint16_t m_streamsPerLink;                       //!< attribute StreamsPerLink
    uint32_t m_ringBytes;                            //!< attribute RingBytes
    bool m_promote;                                  //!< attribute Promote
    uint32_t m_tcpBufferBytes;                       //!< attribute TcpBufferBytes
    uint32_t m_mtuBytes;                             //!< attribute MtuBytes
    DataRate m_lineRate;                             //!< attribute LineRate
    bool m_selectiveRepeat;                          //!< attribute SelectiveRepeat
    uint32_t m_ackInterval;                          //!< attribute AckInterval
    Time m_retryTimeout;                             //!< attribute RetryTimeout
    uint8_t m_retryCount;                            //!< attribute RetryCount
    Time m_rnrPause;                                 //!< attribute RnrPause
    uint32_t m_maxInFlight;                          //!< attribute MaxInFlight
    RateControl m_rateControl;                       //!< attribute RateControl
    uint64_t m_windowBytes;                          //!< attribute WindowBytes
    Time m_notificationInterval;                     //!< attribute NotificationInterval
    Time m_doorbell;                                 //!< attribute DoorbellDelay
    Time m_requestFetch;                             //!< attribute RequestFetchDelay
    Time m_payloadFetch;                             //!< attribute PayloadFetchDelay
    Time m_transmitPacket;                           //!< attribute TransmitPacketTime
    Time m_receivePacket;                            //!< attribute ReceivePacketTime
    Time m_contextMiss;                              //!< attribute ContextMissPenalty
    Time m_regionMiss;                               //!< attribute RegionMissPenalty
    Time m_placement;                                //!< attribute PlacementDelay
    Time m_completion;                               //!< attribute CompletionDelay
    uint32_t m_contextCacheEntries;                  //!< attribute ContextCacheEntries
    uint32_t m_regionCacheEntries;                   //!< attribute RegionCacheEntries
};

} // namespace ns3

#endif /* RNIC_FLEET_H */
