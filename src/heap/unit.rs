//! The entry of a unit in the table of units: what runs and spans know of their parts.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use super::space::UNIT_BYTES;

/// Bitmap words in a unit's entry: a bit for each block of 32 bytes or more.
pub(crate) const UNIT_WORDS: usize = UNIT_BYTES / 32 / 64;

/// What a unit is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// The inside of a run (or stale): look elsewhere.
    Inside = 0,
    /// First or last unit of a free run.
    Free = 1,
    /// First or last unit of a run in use.
    Run = 2,
    /// A unit of a span: of one of long blocks, an end or where a block starts.
    Span = 3,
}

/// A unit. Shared; written under the runs lock, or by the owner of its run, unless the field says otherwise.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Unit {
    kind: AtomicU8,
    /// Class of the span.
    class: AtomicU8,
    /// Whether the span is on its class's list. Under the class lock.
    listed: AtomicU8,
    /// Units in the run: in its first unit.
    pub(crate) len: AtomicU32,
    /// First unit of the run: in the units of a span where blocks start, in the last unit of a free run.
    pub(crate) head: AtomicU32,
    /// Neighbours on a list: of free runs under the runs lock, of spans under the class lock.
    pub(crate) next: AtomicU32,
    pub(crate) prev: AtomicU32,
    /// Free blocks in the span, in its first unit. Under the class lock.
    pub(crate) free: AtomicU32,
    /// Bytes into the span at which its first block starts: in its first unit.
    pub(crate) colour: AtomicU32,
    /// Bitmap word below which the span has no free block. Under the class lock.
    pub(crate) search: AtomicU32,
    /// The span's bitmap, this unit's share: a bit per free block. Under the class lock.
    pub(crate) bitmap: [AtomicU64; UNIT_WORDS],
}

const _: () = assert!(size_of::<Unit>() == 64);

impl Unit {
    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        match self.kind.load(Relaxed) {
            1 => Kind::Free,
            2 => Kind::Run,
            3 => Kind::Span,
            _ => Kind::Inside,
        }
    }

    pub(crate) fn set_kind(&self, kind: Kind) {
        self.kind.store(kind as u8, Relaxed);
    }

    #[inline]
    pub(crate) fn class(&self) -> usize {
        usize::from(self.class.load(Relaxed))
    }

    pub(crate) fn set_class(&self, class: usize) {
        self.class.store(class as u8, Relaxed);
    }

    pub(crate) fn is_listed(&self) -> bool {
        self.listed.load(Relaxed) != 0
    }

    pub(crate) fn set_listed(&self, listed: bool) {
        self.listed.store(u8::from(listed), Relaxed);
    }
}
