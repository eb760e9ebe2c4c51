//! The device against a driver that lives in these tests.

mod commands;
mod control;
mod driver;
mod events;
mod hostile;
mod operations;
mod refusals;
mod registers;
mod settings;
mod simulated;
mod wire;
