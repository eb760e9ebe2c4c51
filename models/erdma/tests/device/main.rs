//! The device against a driver that lives in these tests.

mod commands;
mod driver;
mod events;
mod operations;
mod refusals;
mod registers;
