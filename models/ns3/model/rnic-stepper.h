/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#ifndef RNIC_STEPPER_H
#define RNIC_STEPPER_H

#include "ns3/default-simulator-impl.h"
#include "ns3/rnic-helper.h"

namespace ns3
{

/**
 * \ingroup rnic
 * The default simulator, but that Simulator::Run makes one event happen and returns.
 */
class RnicStepSimulatorImpl : public DefaultSimulatorImpl
{
  public:
    /**
     * \brief Get the type ID.
     * \return the object TypeId
     */
    static TypeId GetTypeId();

    void PreEventHook(const EventId& id) override;
};

/**
 * \ingroup rnic
 * A network for whoever asks for one event at a time. The simulator's implementation must be RnicStepSimulatorImpl.
 */
class RnicStepper : public netacc::Network
{
  public:
    /// \param helper has installed the network, and lives as long as this
    explicit RnicStepper(RnicHelper& helper);

    /**
     * One event. A simulation whose time stands still ends the program.
     * \return when it was, in nanoseconds; the greatest number if there was none
     */
    uint64_t step() override;
    void set_cut(uint32_t node, bool cut) override;

  private:
    RnicHelper& m_helper; //!< the network
    uint64_t m_now;       //!< the last event's time, in nanoseconds
    uint64_t m_events;    //!< how many there were at that time
};

} // namespace ns3

#endif /* RNIC_STEPPER_H */
