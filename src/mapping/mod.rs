//! Pages in our address space.

pub(crate) mod reservation;
