/*
 * Copyright (c) 2026 netacc-lab contributors
 *
 * SPDX-License-Identifier: GPL-2.0-only
 */

#include "ns3/test.h"

/**
 * Runs the suites of this module: ns-3's own runner is not part of installed ns-3.
 * \param argc number of arguments
 * \param argv arguments
 * \return 0 if all is well
 */
int
main(int argc, char* argv[])
{
    return ns3::TestRunner::Run(argc, argv);
}
