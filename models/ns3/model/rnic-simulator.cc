/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#include "rnic-simulator.h"

#include "ns3/abort.h"
#include "ns3/event-impl.h"

#include <algorithm>

namespace ns3
{

bool
RnicEventQueue::IsEmpty() const
{
    return m_taken == m_buckets[0].size() && m_filled == 0;
}

std::size_t
RnicEventQueue::BucketOf(uint64_t ts) const
{
    return ts == m_last ? 0 : 64 - __builtin_clzll(ts ^ m_last);
}

void
RnicEventQueue::Add(const Entry& entry)
{
    std::size_t bucket = BucketOf(entry.ts);
    m_buckets[bucket].push_back(entry);
    if (bucket != 0)
    {
        m_filled |= uint64_t(1) << (bucket - 1);
    }
}

RnicEventQueue::Entry
RnicEventQueue::Take()
{
    if (m_taken == m_buckets[0].size())
    {
        m_buckets[0].clear();
        m_taken = 0;
        Advance();
    }
    return m_buckets[0][m_taken++];
}

void
RnicEventQueue::Advance()
{
    std::vector<Entry>& from = m_buckets[__builtin_ctzll(m_filled) + 1];
    m_filled &= m_filled - 1;
    if (from.size() == 1)
    {
        m_last = from.front().ts;
        m_buckets[0].push_back(from.front());
        from.clear();
        return;
    }
    auto earlier = [](const Entry& a, const Entry& b) { return a.ts < b.ts; };
    m_last = std::min_element(from.begin(), from.end(), earlier)->ts;
    // All of them go to buckets below this one, which are empty.
    for (const Entry& entry : from)
    {
        Add(entry);
    }
    from.clear();
}

EventImpl*
RnicEventQueue::Remove(uint64_t ts, uint32_t uid)
{
    std::size_t bucket = BucketOf(ts);
    std::vector<Entry>& entries = m_buckets[bucket];
    auto begin = entries.begin() + (bucket == 0 ? m_taken : 0);
    auto found = std::find_if(begin, entries.end(), [&](const Entry& entry) { return entry.uid == uid; });
    if (found == entries.end())
    {
        return nullptr;
    }
    EventImpl* event = found->event;
    entries.erase(found);
    if (bucket != 0 && entries.empty())
    {
        m_filled &= ~(uint64_t(1) << (bucket - 1));
    }
    return event;
}

NS_OBJECT_ENSURE_REGISTERED(RnicSimulatorImpl);

TypeId
RnicSimulatorImpl::GetTypeId()
{
    static TypeId tid = TypeId("ns3::RnicSimulatorImpl")
                            .SetParent<DefaultSimulatorImpl>()
                            .SetGroupName("Rnic")
                            .AddConstructor<RnicSimulatorImpl>();
    return tid;
}

RnicSimulatorImpl::~RnicSimulatorImpl() = default;

void
RnicSimulatorImpl::Destroy()
{
    DefaultSimulatorImpl::Destroy();
    while (!m_queue.IsEmpty())
    {
        m_queue.Take().event->Unref();
    }
}

bool
RnicSimulatorImpl::IsFinished() const
{
    return m_queue.IsEmpty() || m_stopped;
}

void
RnicSimulatorImpl::Stop()
{
    m_stopped = true;
}

RnicEventQueue::Entry
RnicSimulatorImpl::Add(uint32_t context, const Time& delay, EventImpl* event)
{
    NS_ABORT_MSG_IF(delay.IsStrictlyNegative(), "an event of the past");
    RnicEventQueue::Entry entry{m_current.ts + static_cast<uint64_t>(delay.GetTimeStep()), event, context, m_uid++};
    m_queue.Add(entry);
    return entry;
}

EventId
RnicSimulatorImpl::Schedule(const Time& delay, EventImpl* event)
{
    RnicEventQueue::Entry entry = Add(m_current.context, delay, event);
    return EventId(event, entry.ts, entry.context, entry.uid);
}

void
RnicSimulatorImpl::ScheduleWithContext(uint32_t context, const Time& delay, EventImpl* event)
{
    Add(context, delay, event);
}

EventId
RnicSimulatorImpl::ScheduleNow(EventImpl* event)
{
    return Schedule(Time(0), event);
}

void
RnicSimulatorImpl::Remove(const EventId& id)
{
    if (id.GetUid() == EventId::DESTROY)
    {
        DefaultSimulatorImpl::Remove(id);
        return;
    }
    if (IsExpired(id))
    {
        return;
    }
    if (EventImpl* event = m_queue.Remove(id.GetTs(), id.GetUid()))
    {
        event->Cancel();
        event->Unref();
    }
}

bool
RnicSimulatorImpl::IsExpired(const EventId& id) const
{
    if (id.GetUid() == EventId::DESTROY)
    {
        return DefaultSimulatorImpl::IsExpired(id);
    }
    return !id.PeekEventImpl() || id.GetTs() < m_current.ts ||
           (id.GetTs() == m_current.ts && id.GetUid() <= m_current.uid) || id.PeekEventImpl()->IsCancelled();
}

void
RnicSimulatorImpl::Run()
{
    m_stopped = false;
    while (!m_stopped && !m_queue.IsEmpty())
    {
        m_current = m_queue.Take();
        m_count++;
        EventImpl* event = m_current.event;
        event->Invoke();
        event->Unref();
    }
}

Time
RnicSimulatorImpl::Now() const
{
    return TimeStep(m_current.ts);
}

Time
RnicSimulatorImpl::GetDelayLeft(const EventId& id) const
{
    return IsExpired(id) ? TimeStep(0) : TimeStep(id.GetTs() - m_current.ts);
}

uint32_t
RnicSimulatorImpl::GetContext() const
{
    return m_current.context;
}

uint64_t
RnicSimulatorImpl::GetEventCount() const
{
    return m_count;
}

} // namespace ns3
