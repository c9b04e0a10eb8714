//! Regions made of whole cache lines, with their ragged ends: written once, for every kernel that works by lines.

/// How one kernel writes one line.
pub(super) trait Line {
    /// Bytes in a line: a power of two, the same at every call.
    fn bytes() -> usize;

    /// Zeroes one line.
    ///
    /// # Safety
    ///
    /// The CPU has this kernel, and `dst` is aligned to [`bytes`](Self::bytes) and valid for writing that many.
    unsafe fn clear(dst: *mut u8);

    /// Copies one line.
    ///
    /// # Safety
    ///
    /// As [`clear`](Self::clear), and `src`, of any alignment, is valid for reading as many bytes, none of them
    /// in the line at `dst`.
    unsafe fn copy(dst: *mut u8, src: *const u8);
}

/// Zeroes `len` bytes at `dst`: whole lines by `L`, the ends before and behind them by ordinary stores.
///
/// Always inlined, so that `L`'s instructions are compiled with the CPU features of the calling function.
///
/// # Safety
///
/// The CPU has kernel `L`; `dst` is valid for writing `len` bytes.
#[inline(always)]
pub(super) unsafe fn clear_lines<L: Line>(dst: *mut u8, len: usize) {
    let parts = Parts::of(dst, len, L::bytes());
    // SAFETY: head, lines and tail lie one behind the other in the caller's `len` bytes. The lines start
    // aligned because the head ends at the first boundary, and are a whole number of lines.
    unsafe {
        if parts.head > 0 {
            dst.write_bytes(0, parts.head);
        }
        let mut line = dst.add(parts.head);
        let end = line.add(parts.lines);
        while line < end {
            L::clear(line);
            line = line.add(L::bytes());
        }
        if parts.tail > 0 {
            end.write_bytes(0, parts.tail);
        }
    }
}

/// Copies `len` bytes from `src` to `dst` likewise; the lines are those of `dst`.
///
/// # Safety
///
/// The CPU has kernel `L`; `dst` is valid for writing and `src` for reading `len` bytes, and they do not overlap.
#[inline(always)]
pub(super) unsafe fn copy_lines<L: Line>(dst: *mut u8, src: *const u8, len: usize) {
    let parts = Parts::of(dst, len, L::bytes());
    let tail_at = parts.head + parts.lines;
    // SAFETY: as in `clear_lines`, with `src` read at the offsets at which `dst` is written.
    unsafe {
        if parts.head > 0 {
            dst.copy_from_nonoverlapping(src, parts.head);
        }
        let mut offset = parts.head;
        while offset < tail_at {
            L::copy(dst.add(offset), src.add(offset));
            offset += L::bytes();
        }
        if parts.tail > 0 {
            dst.add(tail_at).copy_from_nonoverlapping(src.add(tail_at), parts.tail);
        }
    }
}

/// A region cut at the line boundaries of memory. `head < line`, `tail < line`, `lines % line == 0`, and the
/// three make the region's length.
struct Parts {
    head: usize,
    lines: usize,
    tail: usize,
}

impl Parts {
    #[inline(always)]
    fn of(start: *mut u8, len: usize, line: usize) -> Parts {
        let head = (start.addr().wrapping_neg() & (line - 1)).min(len);
        let tail = (len - head) & (line - 1);
        Parts { head, lines: len - head - tail, tail }
    }
}
