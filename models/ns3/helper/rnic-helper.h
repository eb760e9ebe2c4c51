/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#ifndef RNIC_HELPER_H
#define RNIC_HELPER_H

#include "ns3/node-container.h"
#include "ns3/object-factory.h"
#include "ns3/rnic-device.h"
#include "ns3/rnic-switch.h"

#include <vector>

namespace ns3
{

/**
 * \ingroup rnic
 * Joins modelled NICs by a network. Each node gets an RnicDevice; ports and switches have the attributes that were set.
 *
 * Numbers of ports, and with them what each one draws from the seed, are those of the plain Rust network where both can
 * express the topology: first the hosts', then the switches'.
 */
class RnicHelper
{
  public:
    RnicHelper();

    /**
     * \param name attribute of RnicPort
     * \param value its value
     */
    void SetPortAttribute(std::string name, const AttributeValue& value);

    /**
     * \param name attribute of RnicSwitch
     * \param value its value
     */
    void SetSwitchAttribute(std::string name, const AttributeValue& value);

    /**
     * \param seed decides which frames are lost or marked, and which path a flow takes
     */
    void SetSeed(uint64_t seed);

    /**
     * Has the C library's allocator take memory from the kernel when it is asked for it, and not ahead. It clears memory that it has
     * taken ahead, and so each of the processes' rings would take all of its pages at once, instead of those that are used.
     */
    static void TakeMemoryWhenUsed();

    /**
     * Two nodes, one link.
     * \param nodes the nodes
     * \param fleet their NICs, with all flows
     */
    void InstallDirect(NodeContainer nodes, Ptr<RnicFleet> fleet);

    /**
     * Each node has a link to one switch.
     * \param nodes the nodes
     * \param fleet their NICs, with all flows
     */
    void InstallStar(NodeContainer nodes, Ptr<RnicFleet> fleet);

    /**
     * Two tiers: each leaf has some of the nodes and a link to each spine. Flows between leaves are spread over the spines.
     * \param nodes the nodes, by leaf
     * \param leaves how many; the number of nodes is a multiple of it
     * \param spines how many
     * \param fleet their NICs, with all flows
     */
    void InstallLeafSpine(NodeContainer nodes, uint32_t leaves, uint32_t spines, Ptr<RnicFleet> fleet);

    /**
     * Cuts the cable of a host, or repairs it. Packets in flight still arrive.
     * \param host number of the node
     * \param cut whether to cut it
     */
    void SetCut(uint32_t host, bool cut);

    /**
     * Makes the NICs, for a network that is then joined link by link.
     * \param nodes the nodes
     * \param fleet their NICs
     */
    void InstallDevices(NodeContainer nodes, Ptr<RnicFleet> fleet);

    /**
     * Makes a switch.
     * \return the switch
     */
    Ptr<RnicSwitch> AddSwitch();

    /**
     * Joins a host to a switch, which so has a route to it.
     * \param host number of the node
     * \param to the switch
     * \return the switch's port and its number there
     */
    std::pair<Ptr<RnicPort>, uint32_t> JoinHost(uint32_t host, Ptr<RnicSwitch> to);

    /**
     * Joins two switches.
     * \param a one
     * \param b the other
     * \return the numbers of their ports
     */
    std::pair<uint32_t, uint32_t> JoinSwitches(Ptr<RnicSwitch> a, Ptr<RnicSwitch> b);

    /// Gives every switch its seeds, when all links are there.
    void SeedSwitches();

    /// Has every NIC begin, in the order of the nodes. After installing, before Simulator::Run.
    void Start();

    /// \return the switches: of two tiers, the leaves first
    const std::vector<Ptr<RnicSwitch>>& GetSwitches() const;

    /// \return the NICs' shells, by node
    const std::vector<Ptr<RnicDevice>>& GetDevices() const;

  private:
    /**
     * Adds a port to a switch.
     * \param to the switch
     * \return the port and its number there
     */
    std::pair<Ptr<RnicPort>, uint32_t> AddPort(Ptr<RnicSwitch> to);

    ObjectFactory m_portFactory;              //!< makes ports
    ObjectFactory m_switchFactory;            //!< makes switches
    Ptr<RnicFleet> m_fleet;                   //!< the NICs
    uint64_t m_seed;                          //!< of the run
    uint64_t m_nextPort;                      //!< number of the next port
    std::vector<Ptr<RnicDevice>> m_devices;   //!< by node
    std::vector<Ptr<RnicPort>> m_farPorts;    //!< the port that sends to each host, by node
    std::vector<Ptr<RnicSwitch>> m_switches;  //!< in the order they were made
    std::vector<uint64_t> m_switchPorts;      //!< ports of each switch
};

} // namespace ns3

#endif /* RNIC_HELPER_H */
