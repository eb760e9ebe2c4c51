/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#ifndef RNIC_EVENT_H
#define RNIC_EVENT_H

#include "ns3/make-event.h"
#include "ns3/nstime.h"
#include "ns3/ptr.h"
#include "ns3/simulator.h"

namespace ns3
{

/**
 * Schedules an event that nobody cancels: without the EventId that Simulator::Schedule makes. It belongs to no node.
 * \param delay the time until then
 * \param event the event, with a reference that is given away
 */
inline void
ScheduleRnicEvent(const Time& delay, EventImpl* event)
{
    Simulator::ScheduleWithContext(Simulator::NO_CONTEXT, delay, event);
}

/**
 * \ingroup rnic
 * An event without arguments that its owner schedules again and again, also before it has happened. Nothing is allocated for
 * each time.
 */
class RnicRepeatedEvent
{
  public:
    /**
     * \param method what happens
     * \param owner whose method it is; it lives until the last time
     */
    template <typename T>
    RnicRepeatedEvent(void (T::*method)(), T* owner)
        : m_event(MakeEvent(method, owner), false)
    {
    }

    /// \param delay the time until it happens
    void Schedule(const Time& delay)
    {
        m_event->Ref();
        ScheduleRnicEvent(delay, PeekPointer(m_event));
    }

  private:
    Ptr<EventImpl> m_event; //!< the same each time
};

} // namespace ns3

#endif /* RNIC_EVENT_H */
