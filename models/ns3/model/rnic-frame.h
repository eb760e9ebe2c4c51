/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#ifndef RNIC_FRAME_H
#define RNIC_FRAME_H

#include "netacc-ns3/src/lib.rs.h"

#include "ns3/packet.h"
#include "ns3/ptr.h"

#include <cstdint>

namespace ns3
{

/**
 * \ingroup rnic
 * A packet on the network: plain values. Only the NICs read its content; the network reads addresses and length, and may
 * set congestion.
 */
struct RnicFrame
{
    netacc::Frame head{};     //!< read by the network and by the NICs
    Ptr<const Packet> packet; //!< of the kernels' IP; null for the NICs' own
};

/**
 * \ingroup rnic
 * The generator of the plain Rust network (SplitMix64), so that both lose and mark the same packets for the same seed. Each
 * port has its own, so the draws of one do not change those of another.
 */
class RnicRandom
{
  public:
    /// The same sequence for each construction.
    RnicRandom() = default;

    /**
     * \param seed of the whole run
     * \param port number of the port
     * \param purpose 0 for links, 1 for queues
     */
    RnicRandom(uint64_t seed, uint64_t port, uint64_t purpose)
        : m_state(seed ^ ((port << 8) | purpose))
    {
        m_state = Next();
    }

    /// \return the next 64 bits
    uint64_t Next()
    {
        m_state += 0x9e3779b97f4a7c15;
        return Mix(m_state);
    }

    /**
     * True in \p ppm of a million cases. Takes nothing from the sequence when that is 0.
     * \param ppm cases of a million
     * \return whether this is one
     */
    bool Chance(uint32_t ppm)
    {
        return ppm > 0 && Next() % 1000000 < ppm;
    }

    /**
     * Scrambles a number: every bit of the result depends on every bit of it.
     * \param z the number
     * \return the result
     */
    static uint64_t Mix(uint64_t z)
    {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }

  private:
    uint64_t m_state{0}; //!< the whole state
};

} // namespace ns3

#endif /* RNIC_FRAME_H */
