//! One conformance suite that any backend runs.
