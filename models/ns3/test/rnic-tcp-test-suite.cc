/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#include "ns3/boolean.h"
#include "ns3/node-container.h"
#include "ns3/rnic-helper.h"
#include "ns3/rnic-tcp.h"
#include "ns3/simulator.h"
#include "ns3/test.h"
#include "ns3/uinteger.h"

#include <algorithm>

using namespace ns3;

/// Bits per second at which a byte takes a nanosecond.
static const uint64_t BYTE_PER_NS = 8000000000;
/// Delay of each link, in nanoseconds.
static const uint64_t DELAY_NS = 500;
/// Ethernet with preamble and gap, IP, TCP with time stamps.
static const uint64_t TCP_FRAME = 38 + 20 + 20 + 12;

/// A run and its result.
struct TcpRun
{
    bool promote{false};           //!< to links
    uint32_t lossPpm{0};           //!< of each link
    uint32_t clients{1};           //!< nodes that ask the last one
    uint32_t requestBytes{64};     //!< of each request
    uint32_t responseBytes{1000};  //!< of each response
    uint32_t count{20};            //!< requests of each client
    bool cut{false};               //!< the server's cable

    uint32_t answered{0};   //!< requests
    uint32_t connected{0};  //!< connections
    uint32_t failed{0};     //!< connections
    uint64_t minNs{0};      //!< of the first client's latencies
    uint64_t medianNs{0};   //!< of the first client's latencies
    uint64_t frames{0};     //!< delivered to NICs
    uint64_t hash{0};       //!< over them
    uint64_t events{0};     //!< of the simulator
    Time end;               //!< when nothing happens any more

    /// Runs until nothing happens any more.
    void Go()
    {
        Ptr<RnicFleet> fleet = CreateObject<RnicFleet>();
        fleet->SetAttribute("LineRate", DataRateValue(DataRate(BYTE_PER_NS)));
        fleet->SetAttribute("RetryTimeout", TimeValue(MilliSeconds(1)));
        fleet->SetAttribute("Promote", BooleanValue(promote));
        fleet->SetAttribute("TcpBufferBytes", UintegerValue(1 << 20));
        for (uint32_t i = 0; i < clients; i++)
        {
            fleet->AddConversation(i, clients, requestBytes, responseBytes, count);
        }
        RnicHelper helper;
        helper.SetSeed(5);
        helper.SetPortAttribute("DataRate", DataRateValue(DataRate(BYTE_PER_NS)));
        helper.SetPortAttribute("Delay", TimeValue(NanoSeconds(DELAY_NS)));
        helper.SetPortAttribute("LossPpm", UintegerValue(lossPpm));
        NodeContainer nodes(clients + 1);
        helper.InstallStar(nodes, fleet);
        Ptr<RnicTcp> tcp = CreateObject<RnicTcp>();
        tcp->Install(nodes, helper.GetDevices(), fleet);
        helper.SetCut(clients, cut);
        helper.Start();
        Simulator::Run();
        netacc::Fleet& model = fleet->GetModel();
        for (uint32_t i = 0; i < clients; i++)
        {
            netacc::ConversationResult result = model.conversation(i);
            answered += result.answered;
            minNs = i == 0 ? result.min_ns : minNs;
            medianNs = i == 0 ? result.median_ns : medianNs;
        }
        connected = tcp->GetConnected();
        failed = tcp->GetFailed();
        frames = model.deliveries();
        hash = model.trace_hash();
        events = Simulator::GetEventCount();
        end = Simulator::Now();
        tcp->Dispose();
        Simulator::Destroy();
    }
};

/**
 * \ingroup rnic-test
 * A request and its response over TCP alone take what their frames take. Breaks if bytes do not travel in packets over the
 * ports, wait for anything, or reach the process late.
 */
class RnicTcpClosedFormTestCase : public TestCase
{
  public:
    RnicTcpClosedFormTestCase()
        : TestCase("A round trip over TCP is exact")
    {
    }

  private:
    void DoRun() override
    {
        TcpRun run;
        run.Go();
        NS_TEST_ASSERT_MSG_EQ(run.answered, 20, "requests answered");
        NS_TEST_ASSERT_MSG_EQ(run.frames, 0, "nothing goes over queue pairs");
        // Two links each way, the switch stores and forwards.
        uint64_t expected = 2 * (TCP_FRAME + 64 + DELAY_NS) + 2 * (TCP_FRAME + 1000 + DELAY_NS);
        NS_TEST_ASSERT_MSG_EQ(run.minNs, expected, "the shortest round trip");
        NS_TEST_ASSERT_MSG_EQ(run.medianNs, expected, "the usual round trip");
    }
};

/**
 * \ingroup rnic-test
 * Many connections over lossy links, of TCP alone and of the core. Breaks if a byte is lost or wrong, if streams do not leave
 * TCP for their links, or if a run is not the one of its seed.
 */
class RnicTcpLossTestCase : public TestCase
{
  public:
    /// \param promote whether connections are promoted
    explicit RnicTcpLossTestCase(bool promote)
        : TestCase(promote ? "From TCP to links, with losses" : "TCP alone, with losses"),
          m_promote(promote)
    {
    }

  private:
    void DoRun() override
    {
        TcpRun first;
        first.promote = m_promote;
        first.lossPpm = 5000;
        first.clients = 8;
        first.requestBytes = 3000;
        first.responseBytes = 50000;
        TcpRun second = first;
        first.Go();
        NS_TEST_ASSERT_MSG_EQ(first.connected, 8, "connections made");
        NS_TEST_ASSERT_MSG_EQ(first.answered, 8 * 20, "requests answered");
        NS_TEST_ASSERT_MSG_EQ((first.frames > 1000), m_promote, "bytes over queue pairs");
        second.Go();
        NS_TEST_ASSERT_MSG_EQ(first.hash, second.hash, "what reached the NICs, and when");
        NS_TEST_ASSERT_MSG_EQ(first.events, second.events, "events");
        NS_TEST_ASSERT_MSG_EQ(first.end, second.end, "the end");
    }

    bool m_promote; //!< whether connections are promoted
};

/**
 * \ingroup rnic-test
 * A large response over TCP comes at the link's rate. Breaks if windows, buffers or the process hold it up.
 */
class RnicTcpRateTestCase : public TestCase
{
  public:
    RnicTcpRateTestCase()
        : TestCase("TCP fills the link")
    {
    }

  private:
    void DoRun() override
    {
        TcpRun run;
        run.responseBytes = 20000000;
        run.count = 3;
        run.Go();
        NS_TEST_ASSERT_MSG_EQ(run.answered, 3, "requests answered");
        // A segment of 1448 bytes takes a frame of 1538.
        uint64_t line = uint64_t{run.responseBytes} / 1448 * (1448 + TCP_FRAME);
        NS_TEST_ASSERT_MSG_GT(run.minNs, line, "not faster than the line");
        NS_TEST_ASSERT_MSG_LT(run.minNs, line + line / 20, "nearly at the line's rate");
    }
};

/**
 * \ingroup rnic-test
 * A server behind a cut cable. Breaks if connecting to it never ends, or the run does not.
 */
class RnicTcpHopelessTestCase : public TestCase
{
  public:
    RnicTcpHopelessTestCase()
        : TestCase("A connection that cannot be made fails")
    {
    }

  private:
    void DoRun() override
    {
        TcpRun run;
        run.promote = true;
        run.cut = true;
        run.Go();
        NS_TEST_ASSERT_MSG_EQ(run.answered, 0, "requests answered");
        NS_TEST_ASSERT_MSG_EQ(run.connected, 0, "connections made");
        NS_TEST_ASSERT_MSG_EQ(run.failed, 1, "connections failed");
    }
};

/**
 * \ingroup rnic-test
 * The suite.
 */
class RnicTcpTestSuite : public TestSuite
{
  public:
    RnicTcpTestSuite()
        : TestSuite("rnic-tcp", UNIT)
    {
        AddTestCase(new RnicTcpClosedFormTestCase, TestCase::QUICK);
        AddTestCase(new RnicTcpRateTestCase, TestCase::QUICK);
        AddTestCase(new RnicTcpLossTestCase(false), TestCase::QUICK);
        AddTestCase(new RnicTcpLossTestCase(true), TestCase::QUICK);
        AddTestCase(new RnicTcpHopelessTestCase, TestCase::QUICK);
    }
};

/// Registers itself.
static RnicTcpTestSuite g_rnicTcpTestSuite;
