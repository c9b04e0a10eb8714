//! What is told while an arena is opened: how far populating has come, and which page size could not be had.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::Declined;
use crate::page_size::PageSize;

/// What a callback of [`ArenaBuilder::on_progress`](super::ArenaBuilder::on_progress) is told. `Display` is one
/// line, such as `512 of 4096 MiB on 2M pages`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PopulateProgress {
    /// The size of the pages being populated: that asked for, or what stands in for it.
    pub page_size: PageSize,
    /// Bytes that are there.
    pub done_bytes: usize,
    /// Bytes in all.
    pub total_bytes: usize,
}

impl fmt::Display for PopulateProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} MiB on {} pages", self.done_bytes >> 20, self.total_bytes >> 20, self.page_size)
    }
}

/// A caller's function, shared by the clones of a builder.
#[derive(Clone)]
pub(super) struct Callback(pub(super) Arc<dyn Fn(PopulateProgress) -> ControlFlow<()> + Send + Sync>);

impl Callback {
    pub(super) fn call(&self, page_size: PageSize, done_bytes: usize, total_bytes: usize) -> ControlFlow<()> {
        (self.0)(PopulateProgress { page_size, done_bytes, total_bytes })
    }
}

/// As [`Callback`], told of what could not be had.
#[derive(Clone)]
pub(super) struct OnFallback(pub(super) Arc<dyn Fn(&Declined) + Send + Sync>);

impl fmt::Debug for OnFallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnFallback")
    }
}

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Callback")
    }
}
