/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#ifndef RNIC_PORT_H
#define RNIC_PORT_H

#include "rnic-event.h"
#include "rnic-frame.h"

#include "ns3/callback.h"
#include "ns3/data-rate.h"
#include "ns3/nstime.h"
#include "ns3/object.h"
#include "ns3/traced-callback.h"

namespace ns3
{

/**
 * \ingroup rnic
 * One direction of a link: serialises frames, delays them, and loses, doubles and reorders some.
 *
 * It has no queue: it signals its owner when it is ready, and takes one frame at a time. Sending schedules first the end of
 * the serialisation, then the arrival, as the plain Rust network does; events of one instant happen in the order of their
 * scheduling, so both networks go the same way.
 */
class RnicPort : public Object
{
  public:
    /**
     * \brief Get the type ID.
     * \return the object TypeId
     */
    static TypeId GetTypeId();

    RnicPort();
    ~RnicPort() override;

    /**
     * \param seed of the run
     * \param index of this port in the run
     */
    void Seed(uint64_t seed, uint64_t index);

    /// \param receiver is given each frame at the other end of the link
    void SetReceiver(Callback<void, const RnicFrame&> receiver);

    /// \param ready is called when the port can send again
    void SetReadyCallback(Callback<void> ready);

    /// \return whether a frame can be sent now: none is being sent, and the peer has not paused us
    bool IsReady() const;

    /// \return whether a frame is being sent
    bool IsBusy() const;

    /**
     * Sends a frame. The port must be ready.
     * \param frame the frame
     */
    void Send(const RnicFrame& frame);

    /**
     * Priority flow control: the peer has no room, or has again. A frame that is being sent goes on.
     * \param paused whether to stop
     */
    void SetPaused(bool paused);

    /**
     * Cuts the wire: what is sent from now on is lost. Or repairs it.
     * \param cut whether to cut it
     */
    void SetCut(bool cut);

    /// \return how long a pause frame of the other end takes to get here
    Time GetPauseDelay() const;

    /// \return bytes of frames whose sending has begun
    uint64_t GetSentBytes() const;

    /**
     * Adds telemetry to a frame that is sent next, if it is data that collects it.
     * \param frame the frame
     * \param queuedBytes bytes that wait behind it
     */
    void AddTelemetry(RnicFrame& frame, uint64_t queuedBytes) const;

    /// \return whether the peer has paused us
    bool IsPaused() const;

    /// \return how often the peer has paused us
    uint64_t GetPauses() const;

    /// \return frames that were lost on the link
    uint64_t GetLost() const;

    /**
     * TracedCallback signature for frames.
     * \param frame the frame
     */
    typedef void (*FrameTracedCallback)(const RnicFrame& frame);

  protected:
    void DoDispose() override;

  private:
    /// The frame has been sent.
    void SendComplete();

    /// A frame reaches the other end.
    class Arrival;

    /// \return by how much the next copy of a frame is late
    Time DrawLateness();

    DataRate m_rate;        //!< bits per second
    Time m_delay;           //!< from the last bit sent to the last bit received
    uint32_t m_lossPpm;     //!< of a million frames, how many are lost
    uint32_t m_duplicatePpm; //!< of a million frames, how many arrive twice
    uint32_t m_reorderPpm;  //!< of a million frames, how many are late
    Time m_reorderDelay;    //!< by how much at most
    RnicRandom m_random;    //!< decides which
    uint64_t m_remainder;   //!< what rounding times has left over: below the rate
    bool m_busy;            //!< a frame is being sent
    bool m_cut;             //!< the wire is cut
    bool m_paused;          //!< by priority flow control
    uint64_t m_lost;        //!< frames lost so far
    uint64_t m_sentNs{0};    //!< time that all frames so far have taken
    uint64_t m_sentBytes{0}; //!< of frames whose sending has begun
    uint64_t m_pauses{0};   //!< pauses by the peer so far
    RnicRepeatedEvent m_sendComplete;               //!< the frame has been sent
    Callback<void, const RnicFrame&> m_receiver;    //!< the other end
    Callback<void> m_ready;                         //!< the owner
    TracedCallback<const RnicFrame&> m_txTrace;     //!< a frame begins
    TracedCallback<const RnicFrame&> m_dropTrace;   //!< a frame is lost
    TracedCallback<bool> m_pauseTrace;              //!< paused, or no more
};

} // namespace ns3

#endif /* RNIC_PORT_H */
