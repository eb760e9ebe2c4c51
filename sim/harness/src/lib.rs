//! Seeded scheduler: whole conversations of simulated processes on in-memory devices with faults.
