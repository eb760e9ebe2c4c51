/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#ifndef RNIC_TCP_H
#define RNIC_TCP_H

#include "rnic-device.h"

#include "ns3/node-container.h"
#include "ns3/socket.h"

#include <array>
#include <map>
#include <vector>

namespace ns3
{

/**
 * \ingroup rnic
 * The processes' TCP connections: sockets of ns-3's internet module, over the ports of the NICs.
 *
 * The sockets that processes see are in the model; this takes what was written there to a socket here, and what has arrived
 * at a socket back. Every byte travels in a packet, and is compared where it arrives.
 */
class RnicTcp : public Object
{
  public:
    /**
     * \brief Get the type ID.
     * \return the object TypeId
     */
    static TypeId GetTypeId();

    RnicTcp();
    ~RnicTcp() override;

    /**
     * Gives the nodes a network device and IP. After the helper has installed their NICs, before it starts them.
     * \param nodes the nodes of the fleet, in its order
     * \param devices their NICs
     * \param fleet the NICs and processes
     */
    void Install(NodeContainer nodes, const std::vector<Ptr<RnicDevice>>& devices, Ptr<RnicFleet> fleet);

    /// \return connections that were made
    uint32_t GetConnected() const;

    /// \return connections that could not be made, or on which TCP has given up
    uint32_t GetFailed() const;

  protected:
    void DoDispose() override;

  private:
    /// A connection: the socket that connects, and the one that is accepted.
    struct Wire
    {
        std::array<Ptr<Socket>, 2> sockets; //!< null until it is made
        std::array<bool, 2> ending{};       //!< all was written, but the socket is not closed yet
        bool connected{false};              //!< made at the client; the server may not have accepted yet
        bool failed{false};                 //!< it is no more
    };

    /// Makes the connections that are to be made, and serves those whose ends were used.
    void Serve();

    /**
     * Begins to connect.
     * \param number of the wire
     * \param client node that connects
     * \param server node that accepts
     */
    void Connect(uint32_t number, uint32_t client, uint32_t server);

    /**
     * Sets the attributes of a socket.
     * \param socket the socket
     */
    void Configure(Ptr<Socket> socket);

    /**
     * A sender never has more under way than its own buffer has, as a byte stays there until the process at the other end can have
     * it. With room for twice that no window is ever closed: a sender of ns-3 without bytes then crashes.
     * \return bytes of a socket's receive buffer
     */
    uint32_t GetReceiveBytes() const;

    /**
     * Sets the callbacks of a socket.
     * \param number of the wire
     * \param side 0 connects, 1 accepts
     * \param socket the socket
     */
    void Adopt(uint32_t number, uint32_t side, Ptr<Socket> socket);

    /**
     * A listener has accepted a connection.
     * \param server node of the listener
     * \param socket the new socket
     * \param from address of the client
     */
    void HandleAccept(uint32_t server, Ptr<Socket> socket, const Address& from);

    /**
     * One end of a connection is made.
     * \param number of the wire
     * \param socket that end
     */
    void HandleConnect(uint32_t number, Ptr<Socket> socket);

    /**
     * Acknowledges the peer's SYN again until the server has accepted: ns-3 never does by itself, and a server that is to speak first
     * would wait for ever.
     * \param number of the wire
     * \param socket who connects
     */
    void Confirm(uint32_t number, Ptr<Socket> socket);

    /**
     * Another connection has the number of one that is over: later events of the old sockets are ignored.
     * \param number of the wire
     */
    void Forget(uint32_t number);

    /**
     * \param number of the wire
     * \param socket a socket with bytes to send
     * \return whether it is one of that wire, and not of one that had the number before
     */
    bool IsOf(uint32_t number, Ptr<Socket> socket) const;

    /**
     * Bytes have arrived at a socket.
     * \param number of the wire
     * \param socket the socket
     */
    void HandleReceive(uint32_t number, Ptr<Socket> socket);

    /**
     * There is room in a socket's send buffer.
     * \param number of the wire
     * \param socket the socket
     * \param room bytes
     */
    void HandleRoom(uint32_t number, Ptr<Socket> socket, uint32_t room);

    /**
     * The peer writes no more.
     * \param number of the wire
     * \param side the side of the event
     * \param socket the socket
     */
    void HandleEnd(uint32_t number, uint32_t side, Ptr<Socket> socket);

    /**
     * The connection could not be made, or is no more.
     * \param number of the wire
     * \param socket the socket
     */
    void HandleFailure(uint32_t number, Ptr<Socket> socket);

    /// \return the time in nanoseconds
    static uint64_t Now();

    /// Something has come to processes: serves those that have become in need of it.
    void Attend();

    /**
     * Moves what can be moved, both ways.
     * \param number of the wire
     */
    void Pump(uint32_t number);

    /**
     * From the model to the socket.
     * \param number of the wire
     * \param side 0 connects, 1 accepts
     */
    void PumpOut(uint32_t number, uint32_t side);

    /**
     * From the socket to the model.
     * \param number of the wire
     * \param side 0 connects, 1 accepts
     */
    void PumpIn(uint32_t number, uint32_t side);

    /// A connection that the server has not accepted yet.
    struct Attempt
    {
        uint32_t number;    //!< of the wire
        Ptr<Socket> socket; //!< who connects
    };

    Time m_interval;                               //!< attribute ConnectInterval
    Time m_timeWait;                               //!< attribute TimeWait
    uint32_t m_bufferBytes;                        //!< of send and receive buffers each
    Time m_minRto;                                 //!< attribute MinRto
    Time m_delayedAck;                             //!< attribute DelayedAck
    uint32_t m_dataRetries;                        //!< attribute DataRetries
    NodeContainer m_nodes;                         //!< of the fleet
    std::vector<Ptr<RnicDevice>> m_devices;        //!< by node
    Ptr<RnicFleet> m_fleet;                        //!< the model
    std::vector<Wire> m_wires;                     //!< by number
    std::map<uint64_t, Attempt> m_connecting;      //!< by their client's address and port, and their server
    std::map<uint32_t, Ptr<Socket>> m_listeners;   //!< by node
    std::vector<uint16_t> m_nextPort;              //!< of clients, by node
    std::vector<uint8_t> m_buffer;                 //!< bytes on their way
    Time m_nextConnect;                            //!< when the next connection is to be begun
    uint32_t m_connected;                          //!< connections that were made
    uint32_t m_failed;                             //!< connections that are no more
    bool m_serving;                                //!< Serve is under way: whoever calls it again is served by it
};

} // namespace ns3

#endif /* RNIC_TCP_H */
