/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#ifndef RNIC_SWITCH_H
#define RNIC_SWITCH_H

#include "rnic-port.h"

#include "ns3/object.h"
#include "ns3/traced-callback.h"

#include <deque>
#include <vector>

namespace ns3
{

/**
 * \ingroup rnic
 * A switch that stores and forwards: output queues in one buffer, marking, priority flow control, and several paths to a
 * destination. A flow always takes the same path.
 *
 * Frames in the buffer wait; the frame that a port is sending is not counted. A frame is accepted if its port has room
 * (PortBufferBytes) and the shared buffer has (SharedBufferBytes: a port gets at most Alpha times the free bytes, after
 * Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998). With flow control each
 * ingress may hold PfcXoffBytes before its peer is paused, until it is down to PfcXonBytes; frames in flight by then need
 * room as well. One priority only.
 */
class RnicSwitch : public Object
{
  public:
    /**
     * \brief Get the type ID.
     * \return the object TypeId
     */
    static TypeId GetTypeId();

    RnicSwitch();
    ~RnicSwitch() override;

    /**
     * Adds a port.
     * \param port sends what leaves here
     * \return its number
     */
    uint32_t AddPort(Ptr<RnicPort> port);

    /**
     * \param index a port of this switch
     * \param upstream the port at the other end of its link, to be paused
     */
    void SetUpstream(uint32_t index, Ptr<RnicPort> upstream);

    /**
     * Adds a path. Several paths to one destination share its flows.
     * \param dst node
     * \param index port that leads there
     */
    void AddRoute(uint32_t dst, uint32_t index);

    /// Forgets all paths, before others are added.
    void ClearRoutes();

    /**
     * \param index a port
     * \return the port
     */
    Ptr<RnicPort> GetPort(uint32_t index) const;

    /**
     * \param seed of the run
     * \param firstQueue number of this switch's first port among all queues of the run
     */
    void Seed(uint64_t seed, uint64_t firstQueue);

    /**
     * A frame arrives.
     * \param ingress port it came in at
     * \param frame the frame
     */
    void Receive(uint32_t ingress, const RnicFrame& frame);

    /**
     * TracedCallback signature for pauses.
     * \param index the port
     * \param paused whether its peer is to stop
     */
    typedef void (*PauseTracedCallback)(uint32_t index, bool paused);

    /// \return frames that found no room
    uint64_t GetDropped() const;

    /// \return frames that were marked
    uint64_t GetMarked() const;

    /// \return pauses that were sent
    uint64_t GetPauses() const;

    /// \return the most bytes that ever waited at one port
    uint64_t GetMaxQueueBytes() const;

    /**
     * \param index a port
     * \return bytes that wait there
     */
    uint64_t GetQueueBytes(uint32_t index) const;

    /**
     * \param index a port
     * \return frames it has sent
     */
    uint64_t GetForwarded(uint32_t index) const;

  protected:
    void DoDispose() override;

  private:
    /**
     * \param tid the type of switches
     * \return the same type, with an attribute for each parameter of switches that the model declares
     */
    static TypeId AddSwitchAttributes(TypeId tid);

    /// A frame that waits.
    struct Waiting
    {
        RnicFrame frame;  //!< it
        uint32_t ingress; //!< where it came in
    };

    /// An output port and its queue.
    struct Output
    {
        Ptr<RnicPort> port;        //!< sends
        Ptr<RnicPort> upstream;    //!< is paused when what came in here is too much
        std::deque<Waiting> queue; //!< waits
        uint64_t bytes{0};         //!< of the queue
        uint64_t ingressBytes{0};  //!< waiting in any queue, having come in here
        bool pausing{false};       //!< the peer is paused
        uint64_t forwarded{0};     //!< frames sent
        RnicRandom random;         //!< decides what is marked
    };

    /**
     * Sends the next frame of a port.
     * \param index the port
     */
    void SendNext(uint32_t index);

    /**
     * \param output where the frame is to wait
     * \param bytes of the frame
     * \return whether there is room
     */
    bool HasRoom(const Output& output, uint32_t bytes) const;

    /**
     * \param queued bytes that wait already
     * \return of a million frames, how many are marked
     */
    uint32_t MarkPpm(uint64_t queued) const;

    /**
     * Pauses or releases the peer of a port, as what came in there demands.
     * \param index the port
     */
    void UpdatePause(uint32_t index);

    std::vector<Output> m_outputs;               //!< by number
    std::vector<std::vector<uint32_t>> m_routes; //!< ports by destination
    uint64_t m_salt;                             //!< of the choice of paths
    uint64_t m_used;                             //!< bytes that wait
    uint64_t m_dropped;                          //!< frames so far
    uint64_t m_marked;                           //!< frames so far
    uint64_t m_pauses;                           //!< so far
    uint64_t m_maxQueueBytes;                    //!< ever
    uint64_t m_portBufferBytes;                  //!< attribute PortBufferBytes
    uint64_t m_sharedBufferBytes;                //!< attribute SharedBufferBytes
    double m_alpha;                              //!< attribute Alpha
    bool m_ecn;                                 //!< attribute Ecn
    uint64_t m_ecnMinBytes;                     //!< attribute EcnMinBytes
    uint64_t m_ecnMaxBytes;                     //!< attribute EcnMaxBytes
    uint32_t m_ecnProbabilityPpm;                       //!< attribute EcnProbabilityPpm
    bool m_pfc;                                  //!< attribute Pfc
    uint64_t m_pfcXoffBytes;                     //!< attribute PfcXoffBytes
    uint64_t m_pfcXonBytes;                      //!< attribute PfcXonBytes
    TracedCallback<const RnicFrame&> m_dropTrace; //!< a frame finds no room
    TracedCallback<const RnicFrame&> m_markTrace; //!< a frame is marked
    TracedCallback<uint32_t, bool> m_pauseTrace;  //!< the peer of a port is paused, or released
};

} // namespace ns3

#endif /* RNIC_SWITCH_H */
