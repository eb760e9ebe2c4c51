//! A software RNIC over shared memory between processes of one host.
