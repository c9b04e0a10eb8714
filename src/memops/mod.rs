//! stub
#![allow(unsafe_code, missing_docs)]
#[derive(Clone, Copy, Debug)]
pub struct FirstTouch { offset: usize, len: usize }
impl FirstTouch {
    pub const fn at(offset: usize, len: usize) -> Self { Self { offset, len } }
    pub const fn unknown() -> Self { Self { offset: 0, len: 65536 } }
    pub const fn nowhere() -> Self { Self { offset: 0, len: 0 } }
    pub const fn offset(self) -> usize { self.offset }
    pub const fn len(self) -> usize { self.len }
}
/// # Safety
/// stub
pub unsafe fn clear(dst: *mut u8, len: usize, _t: FirstTouch) {
    // SAFETY: stub
    unsafe { dst.write_bytes(0, len) }
}
