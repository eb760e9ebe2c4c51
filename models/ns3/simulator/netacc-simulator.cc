/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

// The simulator program: reads a resolved scenario (JSON), runs it, reports progress in lines of JSON, and writes a folder.
// People use `netacc sim`, which checks and resolves scenarios and keeps the folders of many runs.

#include "scenario-network.h"

#include "ns3/command-line.h"
#include "ns3/global-value.h"
#include "ns3/rnic-helper.h"
#include "ns3/rnic-simulator.h"
#include "ns3/simulator.h"
#include "ns3/string.h"

#include <fstream>
#include <iostream>
#include <iterator>

using namespace ns3;

namespace
{

/// The exit codes.
enum ExitCode : int
{
    COMPLETE = 0,   //!< everything was asked and answered
    ERROR = 1,      //!< a file cannot be read or written
    USAGE = 2,      //!< arguments or scenario are not valid
    STALLED = 3,    //!< no process made progress: the watchdog ended the run
    UNFINISHED = 4, //!< some requests were not answered in time
    BROKEN = 5,     //!< a byte was not the one written
};

/// Bytes of a page of memory.
const uint32_t PAGE_BYTES = 4096;

/// Calls a recording at each tick, and ends the run at its verdict.
class Watch
{
  public:
    /**
     * \param recording the recording of the run
     * \param fleet the hosts
     * \param network the network
     * \param ports is given the state of every port at each tick, if it is open
     * \param tickNs the time between ticks
     */
    Watch(netacc::Recording& recording,
          netacc::Fleet& fleet,
          const ScenarioNetwork& network,
          std::ofstream& ports,
          uint64_t tickNs)
        : m_recording(recording),
          m_fleet(fleet),
          m_network(network),
          m_ports(ports),
          m_tick(NanoSeconds(tickNs))
    {
        Simulator::Schedule(m_tick, &Watch::Check, this);
    }

    /// \return the state of the run
    netacc::RunState GetState() const
    {
        return m_state;
    }

  private:
    /// Ticks, and schedules the next tick.
    void Check()
    {
        auto now = static_cast<uint64_t>(Simulator::Now().GetNanoSeconds());
        m_state = m_recording.tick(m_fleet, now);
        if (m_ports.is_open())
        {
            m_network.WritePorts(m_ports, now);
        }
        std::cout << std::string(m_recording.progress(m_fleet, now, Simulator::GetEventCount())) << std::endl;
        if (m_state != netacc::RunState::Going)
        {
            Simulator::Stop();
            return;
        }
        Simulator::Schedule(m_tick, &Watch::Check, this);
    }

    netacc::Recording& m_recording;                     //!< the recording of the run
    netacc::Fleet& m_fleet;                             //!< the hosts
    const ScenarioNetwork& m_network;                   //!< the network
    std::ofstream& m_ports;                             //!< the table of ports
    Time m_tick;                                        //!< time between ticks
    netacc::RunState m_state{netacc::RunState::Going}; //!< state of the run
};

/**
 * \param state how a run ended
 * \return the exit code
 */
ExitCode
CodeOf(netacc::RunState state)
{
    switch (state)
    {
    case netacc::RunState::Complete:
        return COMPLETE;
    case netacc::RunState::Stalled:
        return STALLED;
    case netacc::RunState::Unfinished:
        return UNFINISHED;
    case netacc::RunState::Broken:
        return BROKEN;
    case netacc::RunState::Going:
        break;
    }
    return ERROR;
}

/**
 * \param path of a file
 * \param text is given all of it
 * \return whether it could be read
 */
bool
ReadAll(const std::string& path, std::string& text)
{
    std::ifstream file(path, std::ios::binary);
    if (!file)
    {
        return false;
    }
    text.assign(std::istreambuf_iterator<char>(file), {});
    return true;
}

} // namespace

int
main(int argc, char* argv[])
{
    std::string path;
    std::string folder;
    std::string codeVersion = "unknown";
    bool version = false;
    CommandLine cmd;
    cmd.Usage("Runs a resolved scenario. Ends with 0 if everything was answered, 1 for files that cannot be read or written,\n"
              "2 for a scenario that is not valid, 3 if the run made no progress, 4 if requests were left unanswered,\n"
              "5 if a byte was not the one written.");
    cmd.AddValue("ns3-version", "Print the version of ns-3 and end", version);
    cmd.AddValue("code-version", "The version of the code for meta.json", codeVersion);
    cmd.AddNonOption("scenario", "JSON file", path);
    cmd.AddNonOption("folder", "Folder for the record of the run", folder);
    cmd.Parse(argc, argv);
    if (version)
    {
        std::cout << NS3_VERSION << std::endl;
        return COMPLETE;
    }
    std::string text;
    if (folder.empty() || !ReadAll(path, text))
    {
        std::cerr << "netacc-simulator: " << (folder.empty() ? "name the folder for the record: netacc-simulator SCENARIO FOLDER" : "cannot read " + path) << std::endl;
        return folder.empty() ? USAGE : ERROR;
    }

    GlobalValue::Bind("SimulatorImplementationType", StringValue(RnicSimulatorImpl::GetTypeId().GetName()));
    ExitCode code = USAGE;
    try
    {
        auto scenario = netacc::read_scenario(rust::Str(text));
        // A ring of one page takes all of itself anyway, and the kernel need not be asked for each.
        if (scenario->ring_bytes() > PAGE_BYTES)
        {
            RnicHelper::TakeMemoryWhenUsed();
        }
        Ptr<RnicFleet> fleet = CreateObject<RnicFleet>();
        // Never freed: the process ends with the run, and freeing all connections one by one takes time.
        fleet->Ref();
        fleet->Adopt(scenario->fleet());
        netacc::NetworkSpec spec = scenario->network();
        ScenarioNetwork network(spec, fleet);
        code = ERROR;
        auto recording = netacc::new_recording(*scenario, rust::Str(folder));
        std::ofstream ports;
        if (spec.sample_ports)
        {
            ports.open(folder + "/ports.csv");
            ScenarioNetwork::WritePortsHead(ports);
        }
        Watch watch(*recording, fleet->GetModel(), network, ports, spec.tick_ns);
        network.Start();
        Simulator::Run();
        recording->finish(fleet->GetModel(), watch.GetState(), network.GetTotals(), rust::Str(codeVersion), NS3_VERSION);
        code = CodeOf(watch.GetState());
        if (ports.is_open() && !ports.flush())
        {
            std::cerr << "netacc-simulator: cannot write " << folder << "/ports.csv" << std::endl;
            code = ERROR;
        }
        Simulator::Destroy();
    }
    catch (const std::exception& e)
    {
        std::cerr << "netacc-simulator: " << e.what() << std::endl;
    }
    return code;
}
