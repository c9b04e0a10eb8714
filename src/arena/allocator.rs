//! [`ArenaAlloc`]: collections in an arena.

#![allow(unsafe_code)]

use std::alloc::Layout;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use allocator_api2::alloc::{AllocError, Allocator};

use super::Arena;
use super::blocks::Blocks;
use crate::backing::MemoryClass;
use crate::error::{Error, Operation, Result};

/// An allocator over an arena, for collections that take one by the traits of the crate `allocator-api2`: its own `Vec`
/// and `Box`, hashbrown's `HashMap`, and others. Feature `allocator-api2`.
///
/// Blocks of any size and alignment share pages: each costs 8 bytes and is rounded up to 32. Pages are claimed when none
/// that are held have room, as many as a block needs, and go back to the arena when nothing is in them (one page is
/// kept, until an allocation finds no room). A block at the end of its pages grows in place, into the pages behind it where those are free.
///
/// A handle: clones share blocks and pages, and any clone frees what any other allocated. A lock is held while a block is
/// searched for or freed, not while pages are claimed; who finds no page looks again when others have brought theirs.
/// Exhaustion is an error, never a panic; the collections' own methods decide what to make of it (`try_reserve`).
///
/// # Fork
///
/// A child of fork(2) has the blocks of a private arena. If another thread was inside the allocator at that moment, the
/// child gets no more memory from it, and what it frees stays unused: nothing waits for a thread that does not exist.
///
/// # Examples
///
/// ```
/// use allocator_api2::vec::Vec;
/// use hugearena::arena::ArenaAlloc;
/// use hugearena::{Arena, backing::BackingKind};
///
/// # fn main() -> hugearena::Result<()> {
/// let arena = Arena::builder().backing(BackingKind::Anonymous).capacity(8 << 20).open()?;
/// let alloc = ArenaAlloc::new(&arena)?;
///
/// let mut squares = Vec::new_in(alloc.clone());
/// squares.extend((0..1000u64).map(|n| n * n));
///
/// let mut names = hashbrown::HashMap::new_in(alloc);
/// names.insert(9, "three");
/// assert_eq!(names.get(&squares[3]), Some(&"three"));
/// assert_eq!(arena.stats().claimed, 1);
/// # Ok(())
/// # }
/// ```
///
/// # Sources
///
/// The documentation of `allocator_api2::alloc::Allocator`; blocks are kept by the crate `talc`.
#[derive(Clone)]
pub struct ArenaAlloc {
    blocks: Arc<Blocks>,
}

impl ArenaAlloc {
    /// An allocator that claims from `arena`, which has to be private: what peers could write to is no place for Rust
    /// values.
    ///
    /// # Errors
    ///
    /// [`Operation::Configure`] for an arena of shared memory.
    pub fn new(arena: &Arena) -> Result<ArenaAlloc> {
        if arena.memory_class() != MemoryClass::Private {
            let problem = "an allocator on shared memory: use BackingKind::Anonymous, or `new_shared`";
            return Err(Error::new(Operation::Configure, problem));
        }
        // SAFETY: private memory is nobody else's.
        Ok(unsafe { ArenaAlloc::new_shared(arena) })
    }

    /// As [`new`](Self::new), on an arena of whatever class. A child of fork(2) has none of a shared one, and must not
    /// use collections that are in it.
    ///
    /// # Safety
    ///
    /// As long as this allocator, a clone of it, or a collection with one lives, no peer and no device reads or writes
    /// the pages that it claims.
    #[must_use]
    pub unsafe fn new_shared(arena: &Arena) -> ArenaAlloc {
        ArenaAlloc { blocks: Arc::new(Blocks::new(arena.clone())) }
    }

    /// The arena that pages come from and go back to.
    #[must_use]
    pub fn arena(&self) -> &Arena {
        self.blocks.arena()
    }

    /// Moves a block to one of another layout.
    ///
    /// # Safety
    ///
    /// As for [`Allocator::grow`], but the new size may also be smaller.
    unsafe fn move_to(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> std::result::Result<NonNull<u8>, AllocError> {
        let to = self.blocks.allocate(new).ok_or(AllocError)?;
        // SAFETY: two blocks of at least that length, one of them new.
        unsafe {
            block.copy_to_nonoverlapping(to, old.size().min(new.size()));
            self.deallocate(block, old);
        }
        Ok(to)
    }
}

/// The answer to a layout without bytes.
fn nothing(layout: Layout) -> NonNull<[u8]> {
    NonNull::slice_from_raw_parts(layout.dangling_ptr(), 0)
}

// SAFETY: blocks are memory of chunks that are held as long as any clone lives, handed out once until they are
// deallocated; moving or cloning a handle changes nothing about them.
unsafe impl Allocator for ArenaAlloc {
    fn allocate(&self, layout: Layout) -> std::result::Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            return Ok(nothing(layout));
        }
        let block = self.blocks.allocate(layout).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(block, layout.size()))
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        if layout.size() > 0 {
            // SAFETY: the caller's contract.
            unsafe { self.blocks.deallocate(block, layout) };
        }
    }

    unsafe fn grow(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> std::result::Result<NonNull<[u8]>, AllocError> {
        if old.size() == 0 {
            return self.allocate(new);
        }
        let is_aligned = block.addr().get().is_multiple_of(new.align());
        // SAFETY: the caller's contract.
        let grown = unsafe {
            match is_aligned && self.blocks.grow_in_place(block, old, new.size()) {
                true => block,
                false => self.move_to(block, old, new)?,
            }
        };
        Ok(NonNull::slice_from_raw_parts(grown, new.size()))
    }

    unsafe fn grow_zeroed(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> std::result::Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's contract; the tail is inside the new block.
        unsafe {
            let grown = self.grow(block, old, new)?;
            grown.cast::<u8>().add(old.size()).write_bytes(0, new.size() - old.size());
            Ok(grown)
        }
    }

    unsafe fn shrink(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> std::result::Result<NonNull<[u8]>, AllocError> {
        if new.size() == 0 {
            // SAFETY: the caller's contract.
            unsafe { self.deallocate(block, old) };
            return Ok(nothing(new));
        }
        let is_aligned = block.addr().get().is_multiple_of(new.align());
        // SAFETY: the caller's contract.
        let shrunk = unsafe {
            match is_aligned && self.blocks.shrink(block, old, new.size()) {
                true => block,
                false => self.move_to(block, old, new)?,
            }
        };
        Ok(NonNull::slice_from_raw_parts(shrunk, new.size()))
    }
}

impl fmt::Debug for ArenaAlloc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArenaAlloc").field("arena", self.arena()).finish()
    }
}
