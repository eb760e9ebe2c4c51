/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#include "ns3/boolean.h"
#include "ns3/double.h"
#include "ns3/global-value.h"
#include "ns3/node-container.h"
#include "ns3/rnic-helper.h"
#include "ns3/rnic-simulator.h"
#include "ns3/simulator.h"
#include "ns3/string.h"
#include "ns3/test.h"
#include "ns3/uinteger.h"

#include <map>
#include <random>
#include <set>
#include <vector>

using namespace ns3;

/// Bits per second at which a byte takes a nanosecond.
static const uint64_t BYTE_PER_NS = 8000000000;
/// Preamble to check sequences of a data packet, and what its first and last packet have more.
static const uint64_t FRAME = 82;
static const uint64_t RETH = 16;
static const uint64_t IMMEDIATE = 4;

/**
 * NICs of that rate with 1000 bytes a packet.
 * \return the NICs
 */
static Ptr<RnicFleet>
MakeFleet()
{
    Ptr<RnicFleet> fleet = CreateObject<RnicFleet>();
    fleet->SetAttribute("MtuBytes", UintegerValue(1000));
    fleet->SetAttribute("LineRate", DataRateValue(DataRate(BYTE_PER_NS)));
    fleet->SetAttribute("RetryTimeout", TimeValue(MilliSeconds(1)));
    return fleet;
}

/**
 * A helper for links of that rate.
 * \return the helper
 */
static RnicHelper
MakeHelper()
{
    RnicHelper helper;
    helper.SetPortAttribute("DataRate", DataRateValue(DataRate(BYTE_PER_NS)));
    helper.SetPortAttribute("Delay", TimeValue(NanoSeconds(500)));
    return helper;
}

/**
 * \param fleet NICs of a simulation that is over
 * \return flows that were delivered
 */
static uint32_t
CountDelivered(Ptr<RnicFleet> fleet)
{
    uint32_t delivered = 0;
    for (uint32_t flow = 0; flow < fleet->GetFlows().size(); flow++)
    {
        delivered += fleet->GetModel().result(flow).state == netacc::FlowState::Delivered ? 1 : 0;
    }
    return delivered;
}

/**
 * \ingroup rnic-test
 * Times that can be computed by hand. Breaks if link or shell add or lose a nanosecond.
 */
class RnicClosedFormTestCase : public TestCase
{
  public:
    RnicClosedFormTestCase()
        : TestCase("Serialisation and propagation are exact")
    {
    }

  private:
    void DoRun() override
    {
        Ptr<RnicFleet> fleet = MakeFleet();
        fleet->AddFlow(0, 1, 50000, NanoSeconds(100));
        RnicHelper helper = MakeHelper();
        NodeContainer nodes(2);
        helper.InstallDirect(nodes, fleet);
        helper.Start();
        Simulator::Run();
        netacc::FlowResult result = fleet->GetModel().result(0);
        uint64_t expected = 100 + 50 * (FRAME + 1000) + RETH + IMMEDIATE + 500;
        NS_TEST_ASSERT_MSG_EQ(result.end_ns, expected, "fifty packets and the delay");
        NS_TEST_ASSERT_MSG_EQ((result.state == netacc::FlowState::Delivered), true, "delivered");
        Simulator::Destroy();
    }
};

/// A run that the plain Rust network can do as well.
struct SameRun
{
    std::string name;     //!< for people
    bool star;            //!< a switch, or one link
    uint32_t nodes;       //!< NICs
    uint64_t rateBps;     //!< of each link
    uint64_t delayNs;     //!< of each link
    uint32_t lossPpm;     //!< of each link
    uint64_t bufferBytes; //!< of each port
    bool mark;            //!< the switch marks, and the NICs obey
    bool selectiveRepeat; //!< recovery
    std::string scheduler; //!< of ns-3
    std::string rateControl{"none"}; //!< of the NICs, unless the switch marks
};

/**
 * \ingroup rnic-test
 * The same flows here and on the plain Rust network. Breaks if the two differ in anything: a time, an order, a loss.
 */
class RnicSameTraceTestCase : public TestCase
{
  public:
    /// \param run what to run
    explicit RnicSameTraceTestCase(SameRun run)
        : TestCase("Same trace as the plain network: " + run.name),
          m_run(run)
    {
    }

  private:
    void DoRun() override
    {
        ObjectFactory scheduler;
        scheduler.SetTypeId(m_run.scheduler);
        Simulator::SetScheduler(scheduler);
        Ptr<RnicFleet> fleet = MakeFleet();
        fleet->SetAttribute("Recovery", StringValue(m_run.selectiveRepeat ? "selective-repeat" : "go-back-n"));
        fleet->SetAttribute("RetryCount", UintegerValue(100));
        fleet->SetAttribute("ContextCache", UintegerValue(2));
        fleet->SetAttribute("ContextMiss", TimeValue(NanoSeconds(300)));
        fleet->SetAttribute("ReceivePacket", TimeValue(NanoSeconds(70)));
        fleet->SetAttribute("Doorbell", TimeValue(NanoSeconds(90)));
        fleet->SetAttribute("RateControl", StringValue(m_run.mark ? "dcqcn-paper" : m_run.rateControl));
        for (uint32_t i = 1; i < m_run.nodes; i++)
        {
            fleet->AddFlow(i, 0, 300000, NanoSeconds(0));
            fleet->AddFlow(0, i, 20000, MicroSeconds(7 * i));
            fleet->AddFlow(i, m_run.nodes - i == i ? 0 : m_run.nodes - i, 0, MicroSeconds(40));
        }
        const uint64_t seed = 42;
        RnicHelper helper = MakeHelper();
        helper.SetSeed(seed);
        helper.SetPortAttribute("DataRate", DataRateValue(DataRate(m_run.rateBps)));
        helper.SetPortAttribute("Delay", TimeValue(NanoSeconds(m_run.delayNs)));
        helper.SetPortAttribute("LossPpm", UintegerValue(m_run.lossPpm));
        helper.SetSwitchAttribute("PortBufferBytes", UintegerValue(m_run.bufferBytes));
        helper.SetSwitchAttribute("Ecn", BooleanValue(m_run.mark));
        NodeContainer nodes(m_run.nodes);
        if (m_run.star)
        {
            helper.InstallStar(nodes, fleet);
        }
        else
        {
            helper.InstallDirect(nodes, fleet);
        }
        helper.Start();
        Simulator::Run();

        netacc::ReferenceNetwork network{};
        network.star = m_run.star;
        network.rate_bps = m_run.rateBps;
        network.delay_ns = m_run.delayNs;
        network.loss_ppm = m_run.lossPpm;
        network.buffer_bytes = m_run.bufferBytes;
        network.mark = m_run.mark;
        network.mark_min_bytes = 5000;
        network.mark_max_bytes = 200000;
        network.mark_max_ppm = 10000;
        network.seed = seed;
        const auto& flows = fleet->GetFlows();
        netacc::RunSummary reference =
            netacc::reference_run(network, m_run.nodes, fleet->GetParameters(), {flows.data(), flows.size()});
        NS_TEST_ASSERT_MSG_EQ(fleet->GetModel().deliveries(), reference.deliveries, "frames delivered");
        NS_TEST_ASSERT_MSG_EQ(fleet->GetModel().trace_hash(), reference.trace_hash, "what was delivered, and when");
        if (m_run.star)
        {
            NS_TEST_ASSERT_MSG_EQ(helper.GetSwitches()[0]->GetDropped(), reference.dropped, "drops");
            NS_TEST_ASSERT_MSG_EQ(helper.GetSwitches()[0]->GetMarked(), reference.marked, "marks");
            bool expectDrops = m_run.bufferBytes < 100000;
            NS_TEST_ASSERT_MSG_EQ((reference.dropped > 0), expectDrops, "the run has the faults of its name");
            NS_TEST_ASSERT_MSG_EQ((reference.marked > 0), m_run.mark, "the run has the faults of its name");
        }
        NS_TEST_ASSERT_MSG_EQ(CountDelivered(fleet), flows.size(), "everything is delivered");
        Simulator::Destroy();
    }

    SameRun m_run; //!< what to run
};

/**
 * \ingroup rnic-test
 * Incast into a small buffer. Breaks if flow control lets a frame be dropped, stops for good, or its absence goes unnoticed.
 */
class RnicPfcTestCase : public TestCase
{
  public:
    RnicPfcTestCase()
        : TestCase("PFC loses nothing")
    {
    }

  private:
    /**
     * \param pfc with flow control or without
     * \return the switch, when the run is over
     */
    Ptr<RnicSwitch> Incast(bool pfc)
    {
        const uint32_t senders = 8;
        Ptr<RnicFleet> fleet = MakeFleet();
        fleet->SetAttribute("RetryCount", UintegerValue(100));
        for (uint32_t i = 0; i < senders; i++)
        {
            fleet->AddFlow(i, senders, 1000000, NanoSeconds(0));
        }
        RnicHelper helper = MakeHelper();
        helper.SetSwitchAttribute("Pfc", BooleanValue(pfc));
        helper.SetSwitchAttribute("PfcXoffBytes", UintegerValue(10000));
        helper.SetSwitchAttribute("PfcXonBytes", UintegerValue(8000));
        // Of each ingress: what it may hold, and what comes until the pause has arrived. There and back the delay is
        // 1000 ns, a frame may just have begun at either end.
        const uint64_t headroom = 2 * 500 + 84 + 2 * (FRAME + RETH + IMMEDIATE + 1000);
        helper.SetSwitchAttribute("PortBufferBytes", UintegerValue(senders * (10000 + 1102 + headroom)));
        NodeContainer nodes(senders + 1);
        helper.InstallStar(nodes, fleet);
        helper.Start();
        Simulator::Run();
        NS_TEST_EXPECT_MSG_EQ(CountDelivered(fleet), senders, "everything is delivered in the end");
        m_last = 0;
        uint64_t sent = 0;
        for (uint32_t i = 0; i < senders; i++)
        {
            m_last = std::max(m_last, fleet->GetModel().result(i).end_ns);
            sent += fleet->GetModel().counters(i).data_repeated;
        }
        m_repeated = sent;
        Simulator::Destroy();
        return helper.GetSwitches()[0];
    }

    void DoRun() override
    {
        Ptr<RnicSwitch> with = Incast(true);
        NS_TEST_ASSERT_MSG_EQ(with->GetDropped(), 0, "drops with flow control");
        NS_TEST_ASSERT_MSG_EQ(m_repeated, 0, "repetitions with flow control");
        NS_TEST_ASSERT_MSG_GT(with->GetPauses(), 0, "pauses");
        // The receiver's link never idles: the first frame's way, then the serialisation of everything.
        const uint64_t all = 8 * (1000 * (FRAME + 1000) + RETH + IMMEDIATE);
        NS_TEST_ASSERT_MSG_EQ(m_last, all + (FRAME + RETH + 1000) + 2 * 500, "at the receiver's line rate");
        Ptr<RnicSwitch> without = Incast(false);
        NS_TEST_ASSERT_MSG_GT(without->GetDropped(), 0, "drops without flow control");
        NS_TEST_ASSERT_MSG_EQ(without->GetPauses(), 0, "pauses without flow control");
    }

    uint64_t m_last{0};     //!< when the last flow ended, in nanoseconds
    uint64_t m_repeated{0}; //!< packets sent again
};

/**
 * \ingroup rnic-test
 * One congested port of a shared buffer. Breaks if the dynamic threshold is not Choudhury and Hahne's: the queue grows to
 * alpha / (1 + alpha) of the buffer.
 */
class RnicSharedBufferTestCase : public TestCase
{
  public:
    RnicSharedBufferTestCase()
        : TestCase("A port gets its share of the buffer")
    {
    }

  private:
    void DoRun() override
    {
        std::map<double, uint64_t> shares{{0.5, 100000}, {1.0, 150000}, {2.0, 200000}};
        for (auto [alpha, share] : shares)
        {
            Ptr<RnicFleet> fleet = MakeFleet();
            fleet->SetAttribute("RetryCount", UintegerValue(100));
            for (uint32_t i = 0; i < 4; i++)
            {
                fleet->AddFlow(i, 4, 1000000, NanoSeconds(0));
            }
            RnicHelper helper = MakeHelper();
            helper.SetSwitchAttribute("SharedBufferBytes", UintegerValue(300000));
            helper.SetSwitchAttribute("PortBufferBytes", UintegerValue(1000000));
            helper.SetSwitchAttribute("Alpha", DoubleValue(alpha));
            NodeContainer nodes(5);
            helper.InstallStar(nodes, fleet);
            helper.Start();
            Simulator::Run();
            uint64_t most = helper.GetSwitches()[0]->GetMaxQueueBytes();
            // The threshold is what is free without the frame that asks: its own length is the uncertainty.
            NS_TEST_EXPECT_MSG_LT(most, share + 1102, "alpha " << alpha);
            NS_TEST_EXPECT_MSG_GT(most + 2 * 1102, share, "alpha " << alpha);
            NS_TEST_EXPECT_MSG_EQ(CountDelivered(fleet), 4, "alpha " << alpha);
            Simulator::Destroy();
        }
    }
};

/**
 * \ingroup rnic-test
 * Leaves and spines. Breaks if flows are not spread, if a flow takes several paths (its packets would overtake each other),
 * or if a frame goes astray.
 */
class RnicEcmpTestCase : public TestCase
{
  public:
    RnicEcmpTestCase()
        : TestCase("Flows are spread over spines")
    {
    }

  private:
    void DoRun() override
    {
        const uint32_t hosts = 32;
        const uint32_t leaves = 4;
        const uint32_t spines = 4;
        Ptr<RnicFleet> fleet = MakeFleet();
        for (uint32_t i = 0; i < hosts; i++)
        {
            for (uint32_t k = 1; k < 4; k++)
            {
                fleet->AddFlow(i, (i + k * hosts / leaves) % hosts, 20000, NanoSeconds(100 * i));
            }
        }
        RnicHelper helper = MakeHelper();
        helper.SetSwitchAttribute("PortBufferBytes", UintegerValue(10000000));
        NodeContainer nodes(hosts);
        helper.InstallLeafSpine(nodes, leaves, spines, fleet);
        helper.Start();
        Simulator::Run();
        NS_TEST_ASSERT_MSG_EQ(CountDelivered(fleet), fleet->GetFlows().size(), "everything is delivered");
        uint64_t repeated = 0;
        for (uint32_t i = 0; i < hosts; i++)
        {
            repeated += fleet->GetModel().counters(i).data_repeated;
        }
        NS_TEST_ASSERT_MSG_EQ(repeated, 0, "packets overtook each other");
        for (uint32_t l = 0; l < leaves; l++)
        {
            uint64_t least = UINT64_MAX;
            uint64_t most = 0;
            for (uint32_t s = 0; s < spines; s++)
            {
                uint64_t sent = helper.GetSwitches()[l]->GetForwarded(hosts / leaves + s);
                least = std::min(least, sent);
                most = std::max(most, sent);
            }
            // 24 flows of data and as many of acknowledgements over four spines.
            NS_TEST_ASSERT_MSG_GT(least, 0, "leaf " << l << " leaves a spine out");
            NS_TEST_ASSERT_MSG_LT(most, 24 * 22, "leaf " << l << " sends everything over one spine");
        }
        Simulator::Destroy();
    }
};

/**
 * \ingroup rnic-test
 * A network that loses everything. Breaks if the simulation does not end, or a flow's end is not reported.
 */
class RnicHopelessTestCase : public TestCase
{
  public:
    RnicHopelessTestCase()
        : TestCase("Losing everything ends in failed flows")
    {
    }

  private:
    void DoRun() override
    {
        Ptr<RnicFleet> fleet = MakeFleet();
        fleet->SetAttribute("RetryCount", UintegerValue(3));
        fleet->AddFlow(0, 1, 100000, NanoSeconds(0));
        RnicHelper helper = MakeHelper();
        helper.SetPortAttribute("LossPpm", UintegerValue(1000000));
        NodeContainer nodes(2);
        helper.InstallDirect(nodes, fleet);
        helper.Start();
        Simulator::Run();
        netacc::FlowResult result = fleet->GetModel().result(0);
        NS_TEST_ASSERT_MSG_EQ((result.state == netacc::FlowState::Failed), true, "failed");
        NS_TEST_ASSERT_MSG_EQ(result.end_ns, 4 * 1000000, "after four timeouts");
        Simulator::Destroy();
    }
};

/**
 * \ingroup rnic-test
 * The production core on hosts in ns-3: connections are promoted, requests answered, every byte checked; and all of it goes as
 * on the plain network. Breaks if the core or the boundary depends on who drives it.
 */
class RnicCoreTestCase : public TestCase
{
  public:
    /**
     * \param name for people
     * \param lossPpm of each link
     * \param streamsPerLink connections that share a queue pair
     */
    RnicCoreTestCase(std::string name, uint32_t lossPpm, uint16_t streamsPerLink)
        : TestCase("The core, same trace as on the plain network: " + name),
          m_lossPpm(lossPpm),
          m_streamsPerLink(streamsPerLink)
    {
    }

  private:
    void DoRun() override
    {
        const uint32_t hosts = 6;
        const uint32_t count = 20;
        const uint64_t seed = 9;
        Ptr<RnicFleet> fleet = MakeFleet();
        fleet->SetAttribute("StreamsPerLink", UintegerValue(m_streamsPerLink));
        fleet->SetAttribute("Doorbell", TimeValue(NanoSeconds(150)));
        fleet->SetAttribute("Placement", TimeValue(NanoSeconds(400)));
        for (uint32_t i = 1; i < hosts; i++)
        {
            fleet->AddConversation(i, 0, 64, 3000, count);
            fleet->AddConversation(i, 0, 5000, 100, count);
            fleet->AddConversation(0, i, 1, 20000, count);
        }
        RnicHelper helper = MakeHelper();
        helper.SetSeed(seed);
        helper.SetPortAttribute("LossPpm", UintegerValue(m_lossPpm));
        NodeContainer nodes(hosts);
        helper.InstallStar(nodes, fleet);
        helper.Start();
        Simulator::Stop(Seconds(10));
        Simulator::Run();

        netacc::ReferenceNetwork network{};
        network.star = true;
        network.rate_bps = BYTE_PER_NS;
        network.delay_ns = 500;
        network.loss_ppm = m_lossPpm;
        network.buffer_bytes = 1 << 20;
        network.seed = seed;
        const auto& talks = fleet->GetConversations();
        netacc::RunSummary reference = netacc::reference_rpc_run(network,
                                                                 hosts,
                                                                 fleet->GetParameters(),
                                                                 {talks.data(), talks.size()},
                                                                 fleet->GetStack());
        uint64_t repeated = 0;
        for (uint32_t i = 0; i < hosts; i++)
        {
            repeated += fleet->GetModel().counters(i).data_repeated;
        }
        NS_TEST_ASSERT_MSG_EQ((repeated > 0), (m_lossPpm > 0), "the run has the faults of its name");
        for (uint32_t i = 0; i < talks.size(); i++)
        {
            netacc::ConversationResult result = fleet->GetModel().conversation(i);
            NS_TEST_ASSERT_MSG_EQ(result.answered, count, "conversation " << i);
            // There and back through the switch, each message on four links' time; never faster than light.
            NS_TEST_ASSERT_MSG_GT(result.min_ns, 4 * 500, "conversation " << i);
        }
        NS_TEST_ASSERT_MSG_EQ(fleet->GetModel().deliveries(), reference.deliveries, "frames delivered");
        NS_TEST_ASSERT_MSG_EQ(fleet->GetModel().trace_hash(), reference.trace_hash, "what was delivered, and when");
        Simulator::Destroy();
    }

    uint32_t m_lossPpm;        //!< of each link
    uint16_t m_streamsPerLink; //!< connections that share a queue pair
};

/**
 * \ingroup rnic-test
 * Breaks if the queue gives an event before an earlier one, events of one time in another order, one that was removed, or if it
 * loses one.
 */
class RnicEventQueueTestCase : public TestCase
{
  public:
    RnicEventQueueTestCase()
        : TestCase("Events come in the order of time and number")
    {
    }

  private:
    void DoRun() override
    {
        std::mt19937_64 random(1);
        RnicEventQueue queue;
        std::set<std::pair<uint64_t, uint32_t>> reference;
        uint64_t now = 0;
        for (uint32_t uid = 1; uid < 20000; uid++)
        {
            // Of all lengths, and often none.
            uint64_t ts = now + (random() >> (30 + random() % 34));
            queue.Add({ts, nullptr, 0, uid});
            reference.emplace(ts, uid);
            if (random() % 16 == 0)
            {
                auto any = reference.lower_bound({now + random() % 1000, 0});
                if (any != reference.end())
                {
                    queue.Remove(any->first, any->second);
                    reference.erase(any);
                }
            }
            bool drain = uid % 1000 == 999;
            while (!reference.empty() && (drain || random() % 2 == 0))
            {
                RnicEventQueue::Entry taken = queue.Take();
                NS_TEST_ASSERT_MSG_EQ(taken.ts, reference.begin()->first, "the time of event " << taken.uid);
                NS_TEST_ASSERT_MSG_EQ(taken.uid, reference.begin()->second, "the event of that time");
                now = taken.ts;
                reference.erase(reference.begin());
            }
            NS_TEST_ASSERT_MSG_EQ(queue.IsEmpty(), reference.empty(), "events that are left");
        }
    }
};

/**
 * \ingroup rnic-test
 * Breaks if the simulator of one thread differs from ns-3's in what happens, when and how often, with events that are cancelled,
 * removed, or scheduled for the same time.
 */
class RnicSimulatorTestCase : public TestCase
{
  public:
    RnicSimulatorTestCase()
        : TestCase("The simulator of one thread does what ns-3's does")
    {
    }

  private:
    /**
     * \param type an implementation
     * \return what happened there, each with its time
     */
    static std::vector<uint64_t> Happened(const std::string& type)
    {
        GlobalValue::Bind("SimulatorImplementationType", StringValue(type));
        std::vector<uint64_t> happened;
        auto note = [&](uint64_t what) {
            happened.insert(happened.end(), {what, static_cast<uint64_t>(Simulator::Now().GetTimeStep()), Simulator::GetContext()});
        };
        auto noted = [&](uint64_t what) { return [&note, what] { note(what); }; };
        EventId cancelled = Simulator::Schedule(NanoSeconds(7), noted(1));
        EventId removed = Simulator::Schedule(NanoSeconds(9), noted(2));
        EventId kept = Simulator::Schedule(NanoSeconds(5), noted(3));
        Simulator::ScheduleWithContext(4, NanoSeconds(5), noted(4));
        Simulator::Schedule(NanoSeconds(5), [&] {
            note(5);
            cancelled.Cancel();
            Simulator::Remove(removed);
            note(kept.IsExpired());
            note(removed.IsExpired());
            Simulator::ScheduleNow(noted(6));
            EventId later = Simulator::Schedule(NanoSeconds(3), noted(7));
            note(Simulator::GetDelayLeft(later).GetTimeStep());
        });
        Simulator::ScheduleDestroy(noted(8));
        Simulator::Schedule(NanoSeconds(1000), noted(9));
        Simulator::Stop(NanoSeconds(100));
        Simulator::Run();
        note(Simulator::GetEventCount());
        Simulator::Run();
        note(Simulator::GetEventCount());
        note(Simulator::IsFinished());
        Simulator::Destroy();
        return happened;
    }

    void DoRun() override
    {
        std::vector<uint64_t> expected = Happened("ns3::DefaultSimulatorImpl");
        std::vector<uint64_t> here = Happened(RnicSimulatorImpl::GetTypeId().GetName());
        GlobalValue::Bind("SimulatorImplementationType", StringValue("ns3::DefaultSimulatorImpl"));
        NS_TEST_ASSERT_MSG_EQ((expected.size() > 30), true, "events happen at all");
        NS_TEST_ASSERT_MSG_EQ((here == expected), true, "the same events at the same times");
    }
};

/**
 * \ingroup rnic-test
 * The suite.
 */
class RnicTestSuite : public TestSuite
{
  public:
    RnicTestSuite()
        : TestSuite("rnic", UNIT)
    {
        AddTestCase(new RnicClosedFormTestCase, TestCase::QUICK);
        const std::string map = "ns3::MapScheduler";
        const uint64_t endless = 1 << 30;
        // No frame takes a whole number of nanoseconds.
        const uint64_t odd = 7777777777;
        std::vector<SameRun> runs{
            {"one link", false, 2, odd, 500, 0, endless, false, false, map},
            {"one link that loses, go-back-N", false, 2, odd, 500, 10000, endless, false, false, map},
            {"one link that loses, selective repeat", false, 2, odd, 500, 10000, endless, false, true, map},
            {"switch", true, 8, odd, 500, 0, endless, false, false, map},
            {"switch, without delay", true, 8, BYTE_PER_NS, 0, 0, 50000, false, false, map},
            {"switch that drops, go-back-N", true, 8, odd, 500, 0, 50000, false, false, map},
            {"switch that drops, links that lose, selective repeat", true, 8, odd, 500, 5000, 50000, false, true, map},
            {"switch that marks, DCQCN", true, 8, odd, 500, 0, endless, true, false, map},
            {"switch that adds telemetry, HPCC", true, 8, odd, 500, 0, endless, false, false, map, "hpcc"},
            {"switch that marks, a heap", true, 8, odd, 500, 0, endless, true, false, "ns3::HeapScheduler"},
            {"switch that drops, a priority queue",
             true,
             8,
             odd,
             500,
             0,
             50000,
             false,
             false,
             "ns3::PriorityQueueScheduler"},
        };
        for (const auto& run : runs)
        {
            AddTestCase(new RnicSameTraceTestCase(run), TestCase::QUICK);
        }
        AddTestCase(new RnicCoreTestCase("a link for each connection", 0, 1), TestCase::QUICK);
        AddTestCase(new RnicCoreTestCase("connections share links", 0, 8), TestCase::QUICK);
        AddTestCase(new RnicCoreTestCase("links that lose", 5000, 1), TestCase::QUICK);
        AddTestCase(new RnicEventQueueTestCase, TestCase::QUICK);
        AddTestCase(new RnicSimulatorTestCase, TestCase::QUICK);
        AddTestCase(new RnicPfcTestCase, TestCase::QUICK);
        AddTestCase(new RnicSharedBufferTestCase, TestCase::QUICK);
        AddTestCase(new RnicEcmpTestCase, TestCase::QUICK);
        AddTestCase(new RnicHopelessTestCase, TestCase::QUICK);
    }
};

/// Registers itself.
static RnicTestSuite g_rnicTestSuite;
