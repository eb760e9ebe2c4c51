/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#include "rnic-port.h"

#include "ns3/assert.h"
#include "ns3/boolean.h"
#include "ns3/log.h"
#include "ns3/simulator.h"
#include "ns3/trace-source-accessor.h"
#include "ns3/uinteger.h"

namespace ns3
{

NS_LOG_COMPONENT_DEFINE("RnicPort");
NS_OBJECT_ENSURE_REGISTERED(RnicPort);

/// Bytes of a pause frame on the link, with preamble and gap: the smallest frame.
static const uint32_t PAUSE_FRAME_BYTES = 84;

class RnicPort::Arrival : public EventImpl
{
  public:
    /**
     * \param port where the frame was sent
     * \param frame the frame
     */
    Arrival(RnicPort& port, const RnicFrame& frame)
        : m_port(port),
          m_frame(frame)
    {
    }

  private:
    void Notify() override
    {
        if (!m_port.m_receiver.IsNull())
        {
            m_port.m_receiver(m_frame);
        }
    }

    RnicPort& m_port;  //!< where it was sent
    RnicFrame m_frame; //!< the frame
};

TypeId
RnicPort::GetTypeId()
{
    static TypeId tid =
        TypeId("ns3::RnicPort")
            .SetParent<Object>()
            .SetGroupName("Rnic")
            .AddConstructor<RnicPort>()
            .AddAttribute("DataRate",
                          "Rate of the link, in bits per second.",
                          DataRateValue(DataRate("100Gbps")),
                          MakeDataRateAccessor(&RnicPort::m_rate),
                          MakeDataRateChecker())
            .AddAttribute("Delay",
                          "Time from the last bit sent to the last bit received.",
                          TimeValue(NanoSeconds(500)),
                          MakeTimeAccessor(&RnicPort::m_delay),
                          MakeTimeChecker(Time(0)))
            .AddAttribute("LossPpm",
                          "Frames lost of a million, as a VPC without PFC loses them.",
                          UintegerValue(0),
                          MakeUintegerAccessor(&RnicPort::m_lossPpm),
                          MakeUintegerChecker<uint32_t>(0, 1000000))
            .AddAttribute("DuplicatePpm",
                          "Frames of a million that arrive twice.",
                          UintegerValue(0),
                          MakeUintegerAccessor(&RnicPort::m_duplicatePpm),
                          MakeUintegerChecker<uint32_t>(0, 1000000))
            .AddAttribute("ReorderPpm",
                          "Frames of a million that are late, and so overtaken.",
                          UintegerValue(0),
                          MakeUintegerAccessor(&RnicPort::m_reorderPpm),
                          MakeUintegerChecker<uint32_t>(0, 1000000))
            .AddAttribute("ReorderDelay",
                          "By how much those are late at most.",
                          TimeValue(Time(0)),
                          MakeTimeAccessor(&RnicPort::m_reorderDelay),
                          MakeTimeChecker(Time(0)))
            .AddTraceSource("Tx",
                            "A frame begins to be sent.",
                            MakeTraceSourceAccessor(&RnicPort::m_txTrace),
                            "ns3::RnicPort::FrameTracedCallback")
            .AddTraceSource("Drop",
                            "A frame is lost on the link.",
                            MakeTraceSourceAccessor(&RnicPort::m_dropTrace),
                            "ns3::RnicPort::FrameTracedCallback")
            .AddTraceSource("Pause",
                            "The peer has paused this port (true), or has let it go on (false).",
                            MakeTraceSourceAccessor(&RnicPort::m_pauseTrace),
                            "ns3::TracedValueCallback::Bool");
    return tid;
}

RnicPort::RnicPort()
    : m_remainder(0),
      m_busy(false),
      m_cut(false),
      m_paused(false),
      m_lost(0),
      m_sendComplete(&RnicPort::SendComplete, this)
{
}

RnicPort::~RnicPort()
{
}

void
RnicPort::DoDispose()
{
    m_receiver = MakeNullCallback<void, const RnicFrame&>();
    m_ready = MakeNullCallback<void>();
    Object::DoDispose();
}

void
RnicPort::Seed(uint64_t seed, uint64_t index)
{
    m_random = RnicRandom(seed, index, 0);
}

void
RnicPort::SetReceiver(Callback<void, const RnicFrame&> receiver)
{
    m_receiver = receiver;
}

void
RnicPort::SetReadyCallback(Callback<void> ready)
{
    m_ready = ready;
}

bool
RnicPort::IsReady() const
{
    return !m_busy && !m_paused;
}

bool
RnicPort::IsBusy() const
{
    return m_busy;
}

void
RnicPort::Send(const RnicFrame& frame)
{
    NS_LOG_FUNCTION(this << frame.head.src << frame.head.dst << frame.head.wire_bytes);
    NS_ASSERT_MSG(IsReady(), "the port is not ready");
    m_busy = true;
    m_sentBytes += frame.head.wire_bytes;
    m_txTrace(frame);
    // Whole nanoseconds without an error that adds up: what rounding takes from one frame the next one has more.
    uint64_t owed = uint64_t{frame.head.wire_bytes} * 8 * 1000000000 + m_remainder;
    uint64_t busyNs = owed / m_rate.GetBitRate();
    m_remainder = owed % m_rate.GetBitRate();
    m_sentNs += busyNs;
    Time busy = NanoSeconds(busyNs);
    bool lost = m_random.Chance(m_lossPpm);
    bool twice = m_random.Chance(m_duplicatePpm);
    m_sendComplete.Schedule(busy);
    if (lost || m_cut)
    {
        m_lost++;
        m_dropTrace(frame);
        return;
    }
    for (int copies = twice ? 2 : 1; copies > 0; copies--)
    {
        ScheduleRnicEvent(busy + m_delay + DrawLateness(), new Arrival(*this, frame));
    }
}

Time
RnicPort::DrawLateness()
{
    if (!m_random.Chance(m_reorderPpm))
    {
        return Time(0);
    }
    auto most = static_cast<uint64_t>(m_reorderDelay.GetNanoSeconds());
    return NanoSeconds(m_random.Next() % (most + 1));
}

void
RnicPort::SetCut(bool cut)
{
    m_cut = cut;
}

void
RnicPort::SendComplete()
{
    m_busy = false;
    if (!m_paused && !m_ready.IsNull())
    {
        m_ready();
    }
}

void
RnicPort::SetPaused(bool paused)
{
    NS_LOG_FUNCTION(this << paused);
    if (m_paused == paused)
    {
        return;
    }
    m_pauses += paused && !m_paused ? 1 : 0;
    m_paused = paused;
    m_pauseTrace(paused);
    if (!paused && !m_busy && !m_ready.IsNull())
    {
        m_ready();
    }
}

Time
RnicPort::GetPauseDelay() const
{
    uint64_t ns = uint64_t{PAUSE_FRAME_BYTES} * 8 * 1000000000 / m_rate.GetBitRate();
    return NanoSeconds(ns) + m_delay;
}

uint64_t
RnicPort::GetSentBytes() const
{
    return m_sentBytes;
}

void
RnicPort::AddTelemetry(RnicFrame& frame, uint64_t queuedBytes) const
{
    netacc::Frame& head = frame.head;
    if (!head.telemetry || !head.data || head.hop_count >= head.hops.size())
    {
        return;
    }
    // A longer queue counts as so long: its time fits into 64 bits. As in the plain network.
    uint64_t bytes = std::min<uint64_t>(queuedBytes, uint64_t{1} << 30);
    uint64_t queueNs = bytes * 8000000000 / m_rate.GetBitRate();
    auto now = static_cast<uint64_t>(Simulator::Now().GetNanoSeconds());
    head.hops[head.hop_count] = netacc::hop(now, m_sentNs, queueNs);
    head.hop_count++;
}

bool
RnicPort::IsPaused() const
{
    return m_paused;
}

uint64_t
RnicPort::GetPauses() const
{
    return m_pauses;
}

uint64_t
RnicPort::GetLost() const
{
    return m_lost;
}

} // namespace ns3
