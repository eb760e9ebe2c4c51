/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#ifndef SCENARIO_NETWORK_H
#define SCENARIO_NETWORK_H

#include "ns3/rnic-helper.h"
#include "ns3/rnic-tcp.h"

#include <array>
#include <ostream>
#include <vector>

namespace ns3
{

/**
 * The network of a scenario: any graph of hosts and switches, shortest paths, and links that change while the run goes on.
 */
class ScenarioNetwork
{
  public:
    /**
     * Builds it.
     * \param spec hosts, switches, links, and when these change
     * \param fleet the hosts' NICs
     */
    ScenarioNetwork(const netacc::NetworkSpec& spec, Ptr<RnicFleet> fleet);

    ~ScenarioNetwork();

    /// Starts every NIC and schedules the faults. Once, before Simulator::Run.
    void Start();

    /**
     * Writes the first line of a table of ports.
     * \param out the table
     */
    static void WritePortsHead(std::ostream& out);

    /**
     * Writes the state of every port: a line of the table each.
     * \param out the table
     * \param nowNs the time
     */
    void WritePorts(std::ostream& out, uint64_t nowNs) const;

    /// \return the counters of ports and switches
    netacc::NetworkTotals GetTotals() const;

  private:
    /// A link, as it is now.
    struct Link
    {
        netacc::NetworkLink spec;           //!< its ends and properties
        std::array<Ptr<RnicPort>, 2> ports; //!< that send into it
        std::array<uint32_t, 2> indices;    //!< of those at their switches
    };

    /**
     * Joins everything.
     * \param spec hosts, switches, links
     * \param fleet the hosts' NICs
     */
    void Build(const netacc::NetworkSpec& spec, Ptr<RnicFleet> fleet);

    /**
     * Joins the ends of a link.
     * \param spec its properties
     */
    void Join(const netacc::NetworkLink& spec);

    /**
     * Changes a link.
     * \param fault the link and its new properties
     */
    void Change(netacc::NetworkFault fault);

    /// Gives every switch the shortest paths over links that are not cut.
    void Route();

    /**
     * \param node a node
     * \return whether it is a host
     */
    bool IsHost(uint32_t node) const;

    uint32_t m_hosts;                            //!< how many
    uint32_t m_switches;                         //!< how many
    std::vector<Link> m_links;                   //!< by number
    std::vector<netacc::NetworkFault> m_faults;  //!< to come
    NodeContainer m_nodes;                       //!< the hosts
    RnicHelper m_helper;                         //!< makes ports and switches
    Ptr<RnicTcp> m_tcp;                          //!< carries TCP, unless memory does
};

} // namespace ns3

#endif /* SCENARIO_NETWORK_H */
