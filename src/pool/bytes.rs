//! Objects as [`Bytes`], without a copy.

#![allow(unsafe_code)]

use bytes::Bytes;

use super::PoolBox;

/// An object that is only read from now on.
struct Owner(PoolBox);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: not written to while the owner lives: it is either memory that nobody else can write, or the
        // caller of `into_bytes_unchecked` has promised so.
        unsafe { self.0.slice() }
    }
}

impl PoolBox {
    /// The bytes behind the headroom as [`Bytes`]: no copy, cheap to clone and to slice. The object goes home when the
    /// last clone or slice is dropped, by whatever thread. Feature `bytes`.
    ///
    /// For pools on private arenas ([`BackingKind::Anonymous`](crate::backing::BackingKind::Anonymous)) and on those whose
    /// [peers can only read](crate::ArenaBuilder::read_only_peers); memory that others can write to is no `&[u8]`.
    ///
    /// # Errors
    ///
    /// The object, unchanged, when others can write to it, or this is a forked child without it.
    ///
    /// # Examples
    ///
    /// ```
    /// use hugearena::pool::Pool;
    /// use hugearena::{Arena, PageSize, backing::BackingKind};
    ///
    /// # fn main() -> hugearena::Result<()> {
    /// let builder = Arena::builder().page_size(PageSize::base()).backing(BackingKind::Anonymous);
    /// let pool = Pool::builder().object_size(1500).count(64).build(&builder.capacity(1 << 20).open()?)?;
    /// let mut packet = pool.get().expect("64 are free");
    /// packet.as_mut_slice().expect("private")[..5].copy_from_slice(b"hello");
    /// let hello = packet.into_bytes().expect("private").slice(..5);
    /// assert_eq!((&hello[..], pool.stats().in_use), (&b"hello"[..], 1));
    /// drop(hello);
    /// assert_eq!(pool.stats().in_use, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Sources
    ///
    /// The documentation of `bytes::Bytes::from_owner`.
    pub fn into_bytes(self) -> Result<Bytes, PoolBox> {
        if self.as_slice().is_none() {
            return Err(self);
        }
        Ok(Bytes::from_owner(Owner(self)))
    }

    /// As [`into_bytes`](Self::into_bytes), for memory of whatever class. Feature `bytes`.
    ///
    /// # Safety
    ///
    /// No peer and no device writes to the object until the last clone and slice is gone.
    #[must_use]
    pub unsafe fn into_bytes_unchecked(self) -> Bytes {
        Bytes::from_owner(Owner(self))
    }
}
