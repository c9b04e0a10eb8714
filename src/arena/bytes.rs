//! Chunks as [`Bytes`], without a copy.

#![allow(unsafe_code)]

use bytes::Bytes;

use super::Chunk;

/// A chunk that is only read from now on.
struct Owner(Chunk);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        let Owner(chunk) = self;
        // SAFETY: mapped, initialized, and not written to while the owner lives: either nobody else can write to
        // it, or the caller of `into_bytes_unchecked` has promised so.
        unsafe { std::slice::from_raw_parts(chunk.as_ptr().as_ptr(), chunk.len()) }
    }
}

impl Chunk {
    /// The chunk as [`Bytes`]: no copy, cheap to clone and to slice. The pages go back to the arena when the last clone
    /// or slice is dropped, by whatever thread. Feature `bytes`.
    ///
    /// For private arenas ([`BackingKind::Anonymous`](crate::backing::BackingKind::Anonymous)), and shared ones with
    /// [`read_only_peers`](crate::ArenaBuilder::read_only_peers); memory that others can write to is no `&[u8]`.
    ///
    /// # Errors
    ///
    /// The chunk, unchanged, when others can write to it.
    ///
    /// # Examples
    ///
    /// ```
    /// use hugearena::{Arena, PageSize, backing::BackingKind};
    ///
    /// # fn main() -> hugearena::Result<()> {
    /// let builder = Arena::builder().page_size(PageSize::base()).backing(BackingKind::Anonymous);
    /// let arena = builder.capacity(1 << 20).open()?;
    /// let mut chunk = arena.claim(1).expect("256 pages are free");
    /// chunk.as_mut_slice().expect("private")[..5].copy_from_slice(b"hello");
    /// let hello = chunk.into_bytes().expect("private").slice(..5);
    /// assert_eq!(hello, "hello");
    /// drop(hello);
    /// assert_eq!(arena.stats().claimed, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Sources
    ///
    /// The documentation of `bytes::Bytes::from_owner`.
    pub fn into_bytes(self) -> Result<Bytes, Chunk> {
        if self.as_slice().is_none() {
            return Err(self);
        }
        Ok(Bytes::from_owner(Owner(self)))
    }

    /// As [`into_bytes`](Self::into_bytes), for memory of whatever class. Feature `bytes`.
    ///
    /// # Safety
    ///
    /// No peer and no device writes to the chunk until the last clone and slice is gone.
    #[must_use]
    pub unsafe fn into_bytes_unchecked(self) -> Bytes {
        Bytes::from_owner(Owner(self))
    }
}
