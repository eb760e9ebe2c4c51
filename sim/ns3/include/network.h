#ifndef NETACC_NS3_NETWORK_H
#define NETACC_NS3_NETWORK_H

#include <cstdint>

namespace netacc
{

/// A network simulator that is asked for one event at a time.
class Network
{
  public:
    virtual ~Network() = default;

    /**
     * Serves the nodes that need it, then makes the next event happen.
     * \return when that was, in nanoseconds; the greatest number if there is none
     */
    virtual std::uint64_t step() = 0;

    /**
     * Cuts the cable of a node, or repairs it.
     * \param node which
     * \param cut whether to cut it
     */
    virtual void set_cut(std::uint32_t node, bool cut) = 0;
};

} // namespace netacc

#endif /* NETACC_NS3_NETWORK_H */
