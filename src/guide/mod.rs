//! Guides: an arena in each of the interfaces that data planes are made of, a page each. There is no code in here.
//!
//! One arena serves all of them at once: a packet that an AF_XDP socket received can go to a file through io_uring, to
//! another process by its offset, or to a caller as `Bytes`, and is copied nowhere. Each page has the set-up, the limits
//! of the interface, what to hold and for how long, and an example that is also a test against the real thing.
//!
//! | interface | page | what it gets | who holds what until when |
//! |---|---|---|---|
//! | AF_XDP | [`af_xdp`] | a pool as UMEM | its frames, until the socket is closed and all that was sent is completed |
//! | io_uring | [`io_uring`] | [`Chunk::regions`] as registered buffers | the chunk, until nothing is in flight |
//! | vhost-user | [`vhost_user`] | [`Chunk::file_region`]: descriptor, offset, length | the chunk, until the back end is stopped or gone |
//! | `bytes::Bytes` | [`bytes`] | [`Chunk::into_bytes`, `PoolBox::into_bytes`](bytes) | nothing: the last clone gives it back |
//! | collections | [`collections`] | [`ArenaAlloc`](collections) | nothing: collections hold the allocator |
//! | other processes | [`Arena::share`](crate::Arena::share), [`Arena::attach`](crate::Arena::attach) | a descriptor; offset and length | the chunk, until the peer has said that it is done, or is gone |
//! | devices by VFIO, uio | [`iova`](crate::iova) | [`Chunk::iova`]: few ranges | the chunk, until the device is stopped and the mapping undone |
//!
//! What is always true: a driver that has the memory reads and writes it behind the compiler's back, so it is reached by
//! pointer, and by slices only while the buffer is ours; closing a descriptor waits for nothing; and whole huge pages are
//! charged to RLIMIT_MEMLOCK of who registers them ([`supply::pin_limit`](crate::supply::pin_limit) says whether that is
//! allowed, and what to do if not).
//!
//! DPDK and SPDK take chunks too, as external memory (`rte_extmem_register`, `spdk_mem_register`): whole pages, page size
//! and addresses as [`Chunk::iova`] gives them. There is no test of that here.
//!
//! [`Chunk::regions`]: crate::Chunk::regions
//! [`Chunk::iova`]: crate::Chunk::iova
//! [`Chunk::file_region`]: crate::Chunk::file_region

#[doc = include_str!("af_xdp.md")]
pub mod af_xdp {}

#[cfg_attr(feature = "bytes", doc = include_str!("bytes.md"))]
#[cfg_attr(not(feature = "bytes"), doc = "Chunks as `Bytes`. Needs the feature `bytes`.")]
pub mod bytes {}

#[cfg_attr(feature = "allocator-api2", doc = include_str!("collections.md"))]
#[cfg_attr(not(feature = "allocator-api2"), doc = "Collections in an arena. Needs the feature `allocator-api2`.")]
pub mod collections {}

#[doc = include_str!("io_uring.md")]
pub mod io_uring {}

#[doc = include_str!("vhost_user.md")]
pub mod vhost_user {}
