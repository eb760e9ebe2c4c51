//! Middleware: devices that wrap a device. See each module.
