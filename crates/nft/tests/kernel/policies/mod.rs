//! The table of policies: its structure and elements, and the decisions of the kernel about real packets.

mod changes;
mod forbidden;
mod judge;
mod log;
mod lookup;
mod node;
mod samples;
mod swap;
mod table;
mod traffic;
