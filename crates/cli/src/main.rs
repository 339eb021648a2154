//! The `scrimp` command.

fn main() {}
