//! The only loop that connects netacc-proto to a device: readiness, copying, promotion.
