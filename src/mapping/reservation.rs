//! Reserved address space, filled with pages part by part.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use crate::error::Errno;
use crate::page_size::PageSize;
use crate::sys::memory::{self, Anonymous};

/// A range of addresses that belongs to us and is inaccessible until a part of it is committed.
///
/// Memory is private to this process and copied on write after fork(2). A failed commit leaves the range as it
/// was. Nothing here allocates, so the heap may call it. Dropping a reservation does not unmap it: reservations
/// belong to the process-wide heap, which other threads may use until the process is gone.
#[derive(Debug)]
pub(crate) struct Reservation {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a reservation is a range of addresses, not tied to a thread; each method states who may call it when.
unsafe impl Send for Reservation {}
// SAFETY: as above; the methods change only ranges that their caller owns.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `len` bytes at an address that is a multiple of `align`, a power of two; both whole base pages.
    pub(crate) fn new(len: usize, align: usize) -> Result<Reservation, Errno> {
        let padded = len.checked_add(align).ok_or(crate::sys::ENOMEM)?;
        let start = memory::map_anonymous(padded, Anonymous::Reserved)?;
        let head = start.align_offset(align);
        // SAFETY: `head <= align`, so all three parts lie inside the mapping just made, which nobody uses yet.
        unsafe {
            let base = start.add(head);
            trim(start, head);
            trim(base.add(len), align - head);
            Ok(Reservation { base, len })
        }
    }

    /// A range that was mapped elsewhere and is the caller's from now on.
    pub(crate) fn adopt(base: NonNull<u8>, len: usize) -> Reservation {
        Reservation { base, len }
    }

    /// The first address.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Puts `pages` huge pages of `size` at `offset`, all of them present, zeroed and writable.
    ///
    /// They are mapped and populated elsewhere and then moved in: a mapping that fails in place would already
    /// have unmapped the reservation below it. mmap reserves, so a race for the last pages ends in an error
    /// for one side; the population is proved, because `MAP_POPULATE` does not report what it could not do.
    ///
    /// # Safety
    ///
    /// `offset` is a multiple of the page size, the range lies inside the reservation, nothing in it is
    /// committed, and no other thread commits or decommits it meanwhile.
    pub(crate) unsafe fn commit_huge(&self, offset: usize, pages: usize, size: PageSize) -> Result<(), Errno> {
        let len = pages * size.bytes();
        let staged = memory::map_anonymous(len, Anonymous::Huge(size))?;
        // SAFETY: the staged mapping is whole pages, ours, and not used by anybody yet.
        if let Err(errno) = unsafe { prove_populated(staged, len, size) } {
            // SAFETY: as above; whole pages, so this cannot fail and leak.
            unsafe { trim(staged, len) };
            return Err(errno);
        }
        // SAFETY: the staged mapping is ours and unused; the rest is the caller's contract.
        unsafe { self.take_in(offset, staged, len, size) }
    }

    /// Moves huge pages in that were mapped elsewhere and populated; on failure they are gone, and the range is as before.
    ///
    /// # Safety
    ///
    /// As for [`commit_huge`](Self::commit_huge); `staged` is a private mapping of `len` bytes that nobody uses.
    pub(crate) unsafe fn take_in(
        &self,
        offset: usize,
        staged: NonNull<u8>,
        len: usize,
        size: PageSize,
    ) -> Result<(), Errno> {
        // SAFETY: the caller's contract.
        match unsafe { self.move_in(offset, staged, len) } {
            // Before Linux 5.16 mremap refuses hugetlb. The staged pages are back in the pool.
            // SAFETY: the caller's contract.
            Err(crate::sys::EINVAL) => unsafe { self.commit_huge_in_place(offset, len, size) },
            done => done,
        }
    }

    /// As [`commit_huge`](Self::commit_huge), over the reservation: where it fails, the addresses are for a
    /// moment nobody's, and another thread's mapping may come to lie there; the process then ends.
    ///
    /// # Safety
    ///
    /// As for [`commit_huge`](Self::commit_huge); `len` is whole pages of `size`.
    unsafe fn commit_huge_in_place(&self, offset: usize, len: usize, size: PageSize) -> Result<(), Errno> {
        let target = self.at(offset, len);
        // SAFETY: the caller's contract, for each; what was mapped is fresh.
        unsafe {
            let populated = memory::map_huge_over(target, len, size).and_then(|()| prove_populated(target, len, size));
            if populated.is_err() {
                self.restore(target, len);
            }
            populated
        }
    }

    /// Moves a mapping made elsewhere to `offset`; on failure it is unmapped and the range is as before.
    ///
    /// # Safety
    ///
    /// As for [`commit_huge`](Self::commit_huge); `staged` is a mapping of `len` bytes that nobody uses.
    pub(crate) unsafe fn move_in(&self, offset: usize, staged: NonNull<u8>, len: usize) -> Result<(), Errno> {
        let target = self.at(offset, len);
        // SAFETY: the source is unused, the target is ours and unused, by the caller's contract.
        if let Err(errno) = unsafe { memory::move_mapping(staged, len, target) } {
            // SAFETY: the move failed, so the source is where it was. The kernel may have unmapped the target
            // before it failed; taking the addresses again keeps foreign mappings out of our range.
            unsafe {
                trim(staged, len);
                self.abandon(offset, len);
            }
            return Err(errno);
        }
        Ok(())
    }

    /// Makes `len` bytes at `offset` ordinary memory: zeroed, writable, in base pages on first touch.
    ///
    /// # Safety
    ///
    /// As for [`commit_huge`](Self::commit_huge), in whole base pages.
    pub(crate) unsafe fn commit_ordinary(&self, offset: usize, len: usize) -> Result<(), Errno> {
        // SAFETY: whole pages of our own reservation, unused by the caller's contract.
        unsafe { memory::make_writable(self.at(offset, len), len) }
    }

    /// As [`commit_ordinary`](Self::commit_ordinary), asking for transparent huge pages, and populated at once if
    /// `eager`.
    ///
    /// # Safety
    ///
    /// As for [`commit_ordinary`](Self::commit_ordinary).
    pub(crate) unsafe fn commit_transparent(&self, offset: usize, len: usize, eager: bool) -> Result<(), Errno> {
        let at = self.at(offset, len);
        // SAFETY: as above.
        unsafe {
            memory::make_writable(at, len)?;
            let advised = memory::want_transparent_huge(at, len);
            let populated = if eager { advised.and_then(|()| memory::populate_write(at, len)) } else { advised };
            match populated {
                // A kernel without THP or without MADV_POPULATE_WRITE: the pages come on first touch.
                Ok(()) | Err(crate::sys::EINVAL) => Ok(()),
                Err(errno) => {
                    // Nothing was mapped over: what stays if that fails is zero, and ordinary.
                    self.abandon(offset, len);
                    Err(errno)
                }
            }
        }
    }

    /// Populates ordinary memory that is committed; a failure is ignored, the pages then come on first touch.
    ///
    /// # Safety
    ///
    /// The range is committed, whole base pages.
    pub(crate) unsafe fn populate_ordinary(&self, offset: usize, len: usize) {
        // SAFETY: the caller's contract.
        let _ = unsafe { memory::populate_write(self.at(offset, len), len) };
    }

    /// Gives the pages at `offset` back to the system; the addresses stay reserved.
    ///
    /// # Safety
    ///
    /// The range is committed, whole pages of the size it was committed with, and nothing in it is in use.
    ///
    /// # Errors
    ///
    /// The pages are still there and whole.
    pub(crate) unsafe fn decommit(&self, offset: usize, len: usize) -> Result<(), Errno> {
        let at = self.at(offset, len);
        // SAFETY: the caller's contract.
        let Err(errno) = (unsafe { memory::reserve_over(at, len) }) else {
            return Ok(());
        };
        // A process at its limit of mappings cannot split one. The kernel may have unmapped something before it
        // found out: only populating tells.
        // SAFETY: the pages are ours, and nobody uses them.
        let is_there = match unsafe { memory::populate_write(at, len) } {
            Ok(()) => true,
            Err(crate::sys::EFAULT | crate::sys::ENOMEM) => false,
            // Denied, as the call before may have been, or unknown to this kernel: nothing has been unmapped then.
            Err(_) => memory::is_mapped(at, len),
        };
        if !is_there {
            crate::sys::process::abort_with("hugearena: lost pages after a failed decommit\n");
        }
        Err(errno)
    }

    /// Gives back what was to be committed at `offset`, as far as it was. A process at its limit of mappings cannot split
    /// one: what is there then stays, unused, and the addresses are ours as before.
    ///
    /// # Safety
    ///
    /// As for [`decommit`](Self::decommit), committed or not.
    pub(crate) unsafe fn abandon(&self, offset: usize, len: usize) {
        let at = self.at(offset, len);
        // SAFETY: the caller's contract.
        if unsafe { memory::reserve_over(at, len) }.is_err() && !memory::is_mapped(at, len) {
            crate::sys::process::abort_with("hugearena: lost reserved addresses after a failed commit\n");
        }
    }

    /// Whether a committed page is there, without touching it.
    pub(crate) fn is_present(&self, offset: usize) -> bool {
        memory::is_present(self.at(offset, 1))
    }

    /// Unmaps the whole range.
    ///
    /// # Safety
    ///
    /// Nothing in the range is in use, and nobody uses this value afterwards.
    pub(crate) unsafe fn unmap(&self) {
        // SAFETY: the caller's contract.
        unsafe { trim(self.base, self.len) };
    }

    fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        debug_assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: inside the reservation, which is one mapping of ours.
        unsafe { self.base.add(offset) }
    }

    /// Takes addresses of ours again after a failed call that may have unmapped or changed them.
    ///
    /// # Safety
    ///
    /// As for [`decommit`](Self::decommit), committed or not.
    unsafe fn restore(&self, at: NonNull<u8>, len: usize) {
        // SAFETY: the caller's contract.
        if unsafe { memory::reserve_over(at, len) }.is_err() {
            // Without the reservation another mapping may come to lie where the heap believes its own
            // addresses to be. Only a process at its limit of mappings can get here.
            crate::sys::process::abort_with("hugearena: lost reserved addresses after a failed commit\n");
        }
    }
}

/// Proves that every page of a fresh mapping is there: an error instead of a SIGBUS on first touch.
///
/// # Safety
///
/// `at..at + len` is whole pages of `size` of a fresh, writable, unshared mapping of the caller's.
pub(crate) unsafe fn prove_populated(at: NonNull<u8>, len: usize, size: PageSize) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    match unsafe { memory::populate_write(at, len) } {
        // Before Linux 5.14: read a zero into each page; the kernel reports EFAULT where we would get SIGBUS.
        // SAFETY: the mapping is fresh, so every byte is zero already.
        Err(crate::sys::EINVAL) => unsafe { memory::populate_by_read(at, len, size) },
        done => done,
    }
}

/// Unmaps whole pages that were just mapped and never used.
///
/// # Safety
///
/// `at..at + len` is whole pages of a mapping of the caller's that nobody uses.
unsafe fn trim(at: NonNull<u8>, len: usize) {
    if len == 0 {
        return;
    }
    // SAFETY: the caller's contract. munmap of whole pages fails only where it would split a mapping of a
    // process at its limit of mappings. What stays then is addresses, or whole pages that the next exit frees;
    // a panic here would allocate while the heap grows.
    let _ = unsafe { memory::unmap(at, len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_become_writable_and_go_back() {
        let size = PageSize::base().bytes();
        let range = Reservation::new(64 << 20, 1 << 21).unwrap();
        assert_eq!(range.base().as_ptr().align_offset(1 << 21), 0);
        // SAFETY: our own fresh range; offsets are whole pages inside it, used only between the two calls.
        unsafe {
            range.commit_ordinary(2 << 20, 2 * size).unwrap();
            let byte = range.base().add(2 << 20).as_ptr();
            assert_eq!(byte.read(), 0);
            byte.write(7);
            range.decommit(2 << 20, 2 * size).unwrap();
            range.commit_transparent(2 << 20, 2 * size, true).unwrap();
            assert_eq!(byte.read(), 0, "decommitted pages come back zeroed");
        }
    }

    /// Experiments: 51.
    #[test]
    fn a_commit_that_cannot_be_served_leaves_the_range_alone() {
        let range = Reservation::new(1 << 30, 1 << 30).unwrap();
        let absurd = PageSize::from_bytes(1 << 34).unwrap();
        // SAFETY: the range is ours and unused; the call fails before it reaches the target.
        unsafe {
            assert!(range.commit_huge(0, 1, absurd).is_err());
            range.commit_ordinary(0, PageSize::base().bytes()).unwrap();
            range.base().as_ptr().write(1);
        }
    }

    #[test]
    fn committing_in_place_works_or_leaves_the_reservation() {
        let size = PageSize::HUGE_2M;
        let range = Reservation::new(1 << 30, 1 << 21).unwrap();
        // SAFETY: our own range, unused but for what was committed.
        unsafe {
            match range.commit_huge_in_place(size.bytes(), size.bytes(), size) {
                Ok(()) => range.base().as_ptr().add(size.bytes()).write(1),
                Err(_) => range.commit_ordinary(size.bytes(), size.bytes()).unwrap(),
            }
            range.unmap();
        }
    }

    #[test]
    fn populating_by_read_is_an_error_where_a_touch_would_be_a_signal() {
        let page = PageSize::base();
        let len = 4 * page.bytes();
        let file = memory::memfd(c"hugearena-test", page).unwrap();
        let file = std::fs::File::from(file);
        file.set_len(len as u64).unwrap();
        let at = memory::map_shared(std::os::fd::AsFd::as_fd(&file), len, false).unwrap();
        // SAFETY: a mapping of our own that nobody else uses.
        unsafe {
            assert_eq!(memory::populate_by_read(at, len, page), Ok(()));
            file.set_len(page.bytes() as u64).unwrap();
            assert_eq!(memory::populate_by_read(at, len, page), Err(crate::sys::EFAULT));
            memory::unmap(at, len).unwrap();
        }
    }
}
