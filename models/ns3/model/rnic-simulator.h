/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#ifndef RNIC_SIMULATOR_H
#define RNIC_SIMULATOR_H

#include "ns3/default-simulator-impl.h"
#include "ns3/event-id.h"
#include "ns3/simulator.h"

#include <array>
#include <cstdint>
#include <vector>

namespace ns3
{

/**
 * \ingroup rnic
 * Events in the order of their times, those of one time in the order in which they were added: a radix heap.
 *
 * No time is before that of the event taken last. So an event is kept by the highest bit in which its time differs from
 * that one, and an addition compares nothing. Events of one time are always in one bucket, in their order.
 */
class RnicEventQueue
{
  public:
    /// An event, and what its EventId needs.
    struct Entry
    {
        uint64_t ts;      //!< its time
        EventImpl* event; //!< with a reference
        uint32_t context; //!< the node
        uint32_t uid;     //!< its number
    };

    /// \return whether there is none
    bool IsEmpty() const;
    /// \param entry not before the entry taken last
    void Add(const Entry& entry);
    /// \return the first one; there must be one
    Entry Take();
    /**
     * \param ts a time
     * \param uid a number
     * \return the event of that time and number, which is taken out; nullptr if there is none
     */
    EventImpl* Remove(uint64_t ts, uint32_t uid);

  private:
    /// One bucket for those of the last time, and one for each bit.
    static const std::size_t BUCKETS = 65;

    /// \param ts a time
    /// \return the bucket of its events
    std::size_t BucketOf(uint64_t ts) const;
    /// Fills bucket 0, which is empty, from the first bucket that is not.
    void Advance();

    std::array<std::vector<Entry>, BUCKETS> m_buckets; //!< by the highest bit in which times differ from m_last
    uint64_t m_filled{0};                              //!< a bit for each bucket from 1 on: whether it has entries
    std::size_t m_taken{0};                            //!< entries of bucket 0 that have been taken
    uint64_t m_last{0};                                //!< the time of the entry taken last
};

/**
 * \ingroup rnic
 * The simulator of one thread: ns-3's default one without the events of other threads, and with a queue of its own in
 * place of a scheduler. Order, times and numbers of events are the same.
 */
class RnicSimulatorImpl : public DefaultSimulatorImpl
{
  public:
    /// \return the type
    static TypeId GetTypeId();
    ~RnicSimulatorImpl() override;

    void Destroy() override;
    bool IsFinished() const override;
    using DefaultSimulatorImpl::Stop;
    void Stop() override;
    EventId Schedule(const Time& delay, EventImpl* event) override;
    void ScheduleWithContext(uint32_t context, const Time& delay, EventImpl* event) override;
    EventId ScheduleNow(EventImpl* event) override;
    void Remove(const EventId& id) override;
    bool IsExpired(const EventId& id) const override;
    void Run() override;
    Time Now() const override;
    Time GetDelayLeft(const EventId& id) const override;
    uint32_t GetContext() const override;
    uint64_t GetEventCount() const override;

  private:
    /**
     * \param context the node
     * \param delay the time until then
     * \param event with a reference, which is given away
     * \return what was added
     */
    RnicEventQueue::Entry Add(uint32_t context, const Time& delay, EventImpl* event);

    RnicEventQueue m_queue;            //!< what is to happen
    RnicEventQueue::Entry m_current{0, nullptr, Simulator::NO_CONTEXT, EventId::INVALID}; //!< what happens now
    uint32_t m_uid{EventId::VALID};                                                       //!< of the next event
    uint64_t m_count{0};                                                                  //!< events that have happened
    bool m_stopped{false};                                                                //!< this Run takes no further event
};

} // namespace ns3

#endif /* RNIC_SIMULATOR_H */
