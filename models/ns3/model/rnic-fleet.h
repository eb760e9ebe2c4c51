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
#include <string>
#include <vector>

namespace ns3
{

/**
 * \ingroup rnic
 * All modelled NICs of a simulation: configuration as attributes, and the way to the model, which is in Rust.
 *
 * The model is a state machine. It is called with the time and makes no callbacks.
 */
class RnicFleet : public Object
{
  public:
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

    /**
     * Sets a parameter of the NICs that the model declares. Programs use the attribute of that name.
     * \param number of the parameter
     * \param value in the form that the model reads
     */
    void SetParameter(std::size_t number, const std::string& value);

    /// \return the NIC's parameters: the values of the attributes
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
    DataRate m_lineRate;                             //!< attribute LineRate
    std::vector<std::string> m_parameters;           //!< the model's parameters, by their numbers
};

} // namespace ns3

#endif /* RNIC_FLEET_H */
