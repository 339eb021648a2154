//! scrimp
