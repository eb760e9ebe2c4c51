//! netacc, netacc_run, netacc_ss.
