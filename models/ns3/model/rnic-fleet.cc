/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#include "rnic-fleet.h"

#include "ns3/boolean.h"
#include "ns3/enum.h"
#include "ns3/fatal-error.h"
#include "ns3/log.h"
#include "ns3/uinteger.h"

namespace ns3
{

NS_LOG_COMPONENT_DEFINE("RnicFleet");
NS_OBJECT_ENSURE_REGISTERED(RnicFleet);

TypeId
RnicFleet::GetTypeId()
{
    static TypeId tid =
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
            .AddAttribute("MtuBytes",
                          "Payload bytes of a full packet. eRDMA has 1400, or 8500 with jumbo frames.",
                          UintegerValue(4096),
                          MakeUintegerAccessor(&RnicFleet::m_mtuBytes),
                          MakeUintegerChecker<uint32_t>(64, 65536))
            .AddAttribute("LineRate",
                          "Rate of the port, in bits per second: what rate control never exceeds.",
                          DataRateValue(DataRate("100Gbps")),
                          MakeDataRateAccessor(&RnicFleet::m_lineRate),
                          MakeDataRateChecker())
            .AddAttribute("SelectiveRepeat",
                          "Send again what is missing; else everything from the first gap on (go-back-N).",
                          BooleanValue(false),
                          MakeBooleanAccessor(&RnicFleet::m_selectiveRepeat),
                          MakeBooleanChecker())
            .AddAttribute("AckInterval",
                          "Packets after which an acknowledgement is asked for within a message.",
                          UintegerValue(16),
                          MakeUintegerAccessor(&RnicFleet::m_ackInterval),
                          MakeUintegerChecker<uint32_t>(1))
            .AddAttribute("RetryTimeout",
                          "Time without progress after which everything unacknowledged is sent again.",
                          TimeValue(MicroSeconds(67109)),
                          MakeTimeAccessor(&RnicFleet::m_retryTimeout),
                          MakeTimeChecker(NanoSeconds(1)))
            .AddAttribute("RetryCount",
                          "Attempts to recover without progress before the queue pair fails.",
                          UintegerValue(7),
                          MakeUintegerAccessor(&RnicFleet::m_retryCount),
                          MakeUintegerChecker<uint8_t>())
            .AddAttribute("RnrPause",
                          "Pause that a responder without a receive asks for.",
                          TimeValue(MicroSeconds(640)),
                          MakeTimeAccessor(&RnicFleet::m_rnrPause),
                          MakeTimeChecker(Time(0)))
            .AddAttribute("MaxInFlight",
                          "Packets of a queue pair that may be unacknowledged.",
                          UintegerValue(512),
                          MakeUintegerAccessor(&RnicFleet::m_maxInFlight),
                          MakeUintegerChecker<uint32_t>(1))
            .AddAttribute("RateControl",
                          "What keeps queue pairs from sending too fast. eRDMA's own is not public: proxies.",
                          EnumValue(UNLIMITED),
                          MakeEnumAccessor(&RnicFleet::m_rateControl),
                          MakeEnumChecker(UNLIMITED,
                                          "Unlimited",
                                          FIXED_WINDOW,
                                          "FixedWindow",
                                          DCQCN_PAPER,
                                          "DcqcnPaper",
                                          DCQCN_HPCC,
                                          "DcqcnHpcc"))
            .AddAttribute("WindowBytes",
                          "Window of FixedWindow, in bytes of payload.",
                          UintegerValue(65536),
                          MakeUintegerAccessor(&RnicFleet::m_windowBytes),
                          MakeUintegerChecker<uint64_t>(1))
            .AddAttribute("NotificationInterval",
                          "Time between notifications of congestion to a queue pair, at least. DCQCN's paper has 50 us; the HPCC authors' "
                          "receivers notify with every acknowledgement.",
                          TimeValue(MicroSeconds(50)),
                          MakeTimeAccessor(&RnicFleet::m_notificationInterval),
                          MakeTimeChecker(Time(0)))
            .AddAttribute("DoorbellDelay",
                          "Time from the store to the doorbell until the NIC has seen it.",
                          TimeValue(Time(0)),
                          MakeTimeAccessor(&RnicFleet::m_doorbell),
                          MakeTimeChecker(Time(0)))
            .AddAttribute("RequestFetchDelay",
                          "Time to fetch a work request over the bus.",
                          TimeValue(Time(0)),
                          MakeTimeAccessor(&RnicFleet::m_requestFetch),
                          MakeTimeChecker(Time(0)))
            .AddAttribute("PayloadFetchDelay",
                          "Time to fetch the first bytes of a payload.",
                          TimeValue(Time(0)),
                          MakeTimeAccessor(&RnicFleet::m_payloadFetch),
                          MakeTimeChecker(Time(0)))
            .AddAttribute("TransmitPacketTime",
                          "Time of the transmit engine for one packet.",
                          TimeValue(Time(0)),
                          MakeTimeAccessor(&RnicFleet::m_transmitPacket),
                          MakeTimeChecker(Time(0)))
            .AddAttribute("ReceivePacketTime",
                          "Time of the receive engine for one packet.",
                          TimeValue(Time(0)),
                          MakeTimeAccessor(&RnicFleet::m_receivePacket),
                          MakeTimeChecker(Time(0)))
            .AddAttribute("ContextMissPenalty",
                          "Time an engine waits when a queue pair's context is not on chip.",
                          TimeValue(Time(0)),
                          MakeTimeAccessor(&RnicFleet::m_contextMiss),
                          MakeTimeChecker(Time(0)))
            .AddAttribute("RegionMissPenalty",
                          "Time an engine waits when a region's entry is not on chip.",
                          TimeValue(Time(0)),
                          MakeTimeAccessor(&RnicFleet::m_regionMiss),
                          MakeTimeChecker(Time(0)))
            .AddAttribute("PlacementDelay",
                          "Time from the receive engine until a payload is in host memory.",
                          TimeValue(Time(0)),
                          MakeTimeAccessor(&RnicFleet::m_placement),
                          MakeTimeChecker(Time(0)))
            .AddAttribute("CompletionDelay",
                          "Time to write a completion to host memory.",
                          TimeValue(Time(0)),
                          MakeTimeAccessor(&RnicFleet::m_completion),
                          MakeTimeChecker(Time(0)))
            .AddAttribute("ContextCacheEntries",
                          "Queue-pair contexts on chip; 0 for all.",
                          UintegerValue(0),
                          MakeUintegerAccessor(&RnicFleet::m_contextCacheEntries),
                          MakeUintegerChecker<uint32_t>())
            .AddAttribute("RegionCacheEntries",
                          "Region entries on chip; 0 for all.",
                          UintegerValue(0),
                          MakeUintegerAccessor(&RnicFleet::m_regionCacheEntries),
                          MakeUintegerChecker<uint32_t>());
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

netacc::NicParameters
RnicFleet::GetParameters() const
{
    auto ns = [](Time time) { return static_cast<uint64_t>(time.GetNanoSeconds()); };
    netacc::NicParameters p;
    p.mtu_bytes = m_mtuBytes;
    p.line_rate_bps = m_lineRate.GetBitRate();
    p.selective_repeat = m_selectiveRepeat;
    p.ack_interval = m_ackInterval;
    p.retry_timeout_ns = ns(m_retryTimeout);
    p.retry_count = m_retryCount;
    p.rnr_pause_ns = ns(m_rnrPause);
    p.max_in_flight = m_maxInFlight;
    switch (m_rateControl)
    {
    case UNLIMITED:
        p.rate = netacc::Rate::Unlimited;
        break;
    case FIXED_WINDOW:
        p.rate = netacc::Rate::FixedWindow;
        break;
    case DCQCN_PAPER:
        p.rate = netacc::Rate::DcqcnPaper;
        break;
    case DCQCN_HPCC:
        p.rate = netacc::Rate::DcqcnHpcc;
        break;
    }
    p.window_bytes = m_windowBytes;
    p.notification_interval_ns = ns(m_notificationInterval);
    p.doorbell_ns = ns(m_doorbell);
    p.request_fetch_ns = ns(m_requestFetch);
    p.payload_fetch_ns = ns(m_payloadFetch);
    p.transmit_packet_ns = ns(m_transmitPacket);
    p.receive_packet_ns = ns(m_receivePacket);
    p.context_miss_ns = ns(m_contextMiss);
    p.region_miss_ns = ns(m_regionMiss);
    p.placement_ns = ns(m_placement);
    p.completion_ns = ns(m_completion);
    p.context_cache_entries = m_contextCacheEntries;
    p.region_cache_entries = m_regionCacheEntries;
    return p;
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
