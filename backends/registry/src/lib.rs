//! Opens a backend by name.
