/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#include "rnic-fleet.h"

#include "rnic-parameters.h"

#include "ns3/boolean.h"
#include "ns3/fatal-error.h"
#include "ns3/log.h"
#include "ns3/uinteger.h"

namespace ns3
{

NS_LOG_COMPONENT_DEFINE("RnicFleet");
NS_OBJECT_ENSURE_REGISTERED(RnicFleet);

namespace
{

/// Keeps the value of a declared parameter in its fleet.
class ParameterAccessor : public AttributeAccessor
{
  public:
    /**
     * \param number of the parameter
     */
    explicit ParameterAccessor(std::size_t number)
        : m_number(number)
    {
    }

    bool Set(ObjectBase* object, const AttributeValue& value) const override
    {
        auto fleet = dynamic_cast<RnicFleet*>(object);
        if (fleet)
        {
            fleet->SetParameter(m_number, ParameterText(value));
        }
        return fleet != nullptr;
    }

    bool Get(const ObjectBase*, AttributeValue&) const override
    {
        return false;
    }

    bool HasGetter() const override
    {
        return false;
    }

    bool HasSetter() const override
    {
        return true;
    }

  private:
    std::size_t m_number; //!< number of the parameter
};

/**
 * \param tid the type of fleets
 * \return the same type, with an attribute for each parameter of NICs that the model declares
 */
TypeId
AddNicAttributes(TypeId tid)
{
    std::size_t number = 0;
    for (const auto& spec : netacc::nic_attributes())
    {
        tid = AddParameter(tid, spec, Create<ParameterAccessor>(number++));
    }
    return tid;
}

} // namespace

TypeId
RnicFleet::GetTypeId()
{
    static TypeId tid = AddNicAttributes(
        TypeId("ns3::RnicFleet")
            .SetParent<Object>()
            .SetGroupName("Rnic")
            .AddConstructor<RnicFleet>()
            .AddAttribute("StreamsPerLink",
                          "Connections of the core that share a queue pair (NACC_SOR_CONN_PER_QP).",
                          UintegerValue(1),
                          MakeUintegerAccessor(&RnicFleet::m_streamsPerLink),
                          MakeUintegerChecker<uint16_t>(1))
            .AddAttribute("RingBytes",
                          "Bytes of the ring of a connection of the core: a power of two, at least 4096. Memory for a connection is "
                          "a few times that.",
                          UintegerValue(65536),
                          MakeUintegerAccessor(&RnicFleet::m_ringBytes),
                          MakeUintegerChecker<uint32_t>(4096))
            .AddAttribute("Promote",
                          "Connections are promoted to links. If not, what runs is TCP alone.",
                          BooleanValue(true),
                          MakeBooleanAccessor(&RnicFleet::m_promote),
                          MakeBooleanChecker())
            .AddAttribute("TcpBufferBytes",
                          "RnicTcp carries the connections' TCP, with send and receive buffers of so many bytes each. 0: memory "
                          "does, and TCP takes no time.",
                          UintegerValue(0),
                          MakeUintegerAccessor(&RnicFleet::m_tcpBufferBytes),
                          MakeUintegerChecker<uint32_t>())
            .AddAttribute("LineRate",
                          "Rate of the port, in bits per second: what rate control never exceeds.",
                          DataRateValue(DataRate("100Gbps")),
                          MakeDataRateAccessor(&RnicFleet::m_lineRate),
                          MakeDataRateChecker()));
    return tid;
}

RnicFleet::RnicFleet()
{
}

RnicFleet::~RnicFleet()
{
}

void
RnicFleet::DoDispose()
{
    m_model.reset();
    Object::DoDispose();
}

uint32_t
RnicFleet::AddFlow(uint32_t src, uint32_t dst, uint32_t bytes, Time start)
{
    NS_ABORT_MSG_IF(m_model, "flows are added before Build");
    m_flows.push_back({src, dst, bytes, static_cast<uint64_t>(start.GetNanoSeconds())});
    return static_cast<uint32_t>(m_flows.size() - 1);
}

uint32_t
RnicFleet::AddConversation(uint32_t client,
                           uint32_t server,
                           uint32_t requestBytes,
                           uint32_t responseBytes,
                           uint32_t count)
{
    NS_ABORT_MSG_IF(m_model, "conversations are added before Build");
    m_conversations.push_back({client, server, requestBytes, responseBytes, count});
    return static_cast<uint32_t>(m_conversations.size() - 1);
}

void
RnicFleet::Build(uint32_t nodes)
{
    NS_LOG_FUNCTION(this << nodes);
    NS_ABORT_MSG_UNLESS(m_flows.empty() || m_conversations.empty(), "flows or conversations, not both");
    try
    {
        if (!m_conversations.empty())
        {
            rust::Slice<const netacc::ConversationSpec> talks{m_conversations.data(), m_conversations.size()};
            m_model = netacc::new_rpc_fleet(nodes, GetParameters(), talks, GetStack());
            return;
        }
        rust::Slice<const netacc::FlowSpec> flows{m_flows.data(), m_flows.size()};
        m_model = netacc::new_fleet(nodes, GetParameters(), flows);
    }
    catch (const std::exception& e)
    {
        NS_FATAL_ERROR("the NICs cannot be made: " << e.what());
    }
}

void
RnicFleet::Adopt(rust::Box<netacc::Fleet> model)
{
    NS_ABORT_MSG_IF(m_model, "the NICs are made once");
    m_model = std::move(model);
}

bool
RnicFleet::IsBuilt() const
{
    return m_model.has_value();
}

netacc::Fleet&
RnicFleet::GetModel()
{
    NS_ABORT_MSG_UNLESS(m_model, "Build comes first");
    return **m_model;
}

void
RnicFleet::SetParameter(std::size_t number, const std::string& value)
{
    if (m_parameters.size() <= number)
    {
        m_parameters.resize(number + 1);
    }
    m_parameters[number] = value;
}

netacc::NicParameters
RnicFleet::GetParameters() const
{
    netacc::NicParameters parameters;
    parameters.line_rate_bps = m_lineRate.GetBitRate();
    for (const auto& value : m_parameters)
    {
        parameters.values.push_back(value);
    }
    return parameters;
}

const std::vector<netacc::ConversationSpec>&
RnicFleet::GetConversations() const
{
    return m_conversations;
}

netacc::StackSpec
RnicFleet::GetStack() const
{
    return {m_streamsPerLink, m_ringBytes, m_promote, m_tcpBufferBytes};
}

const std::vector<netacc::FlowSpec>&
RnicFleet::GetFlows() const
{
    return m_flows;
}

} // namespace ns3
