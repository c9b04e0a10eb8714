//! Huge-page memory for Rust data planes: a global allocator and arenas on hugetlbfs pages of 2 MiB and 1 GiB.
//!
//! - [`HugeAlloc`] is a `#[global_allocator]`: one line, no set-up, faster when the admin reserves huge pages.
//! - [`Arena`] hands out whole pages in [`Chunk`]s: populated up front, contiguous, shareable by descriptor,
//!   re-zeroed on reuse so that the bytes the caller touches first are in cache when it gets them.
//! - [`memops`] is that clearing and copying on its own: order x kernel x pace.
//! - [`Pool`] has objects of one size for packet and storage loops, by the burst and without locks; [`ring`] passes
//!   bursts of plain data between threads and processes.
//! - [`guide`] puts arenas into AF_XDP sockets, io_uring, `Bytes` and collections; [`iova`] says what devices call
//!   them.
//! - [`supply`] says what huge pages this machine and this process may have; every [`Error`] names the limit
//!   that bound, the file it was read from, and a remedy.
//! - [`doctor`] puts that together: may this process have so many pages, what to run if not, and who has them. The
//!   `hugearena` command (feature `cli`) prints it.
//!
//! ```
//! use hugearena::HugeAlloc;
//!
//! #[global_allocator]
//! static GLOBAL: HugeAlloc = HugeAlloc::new();
//!
//! println!("{}", GLOBAL.stats()); // on which pages, and what would improve it
//! ```
//!
//! Features, all off by default: `bytes` ([`Bytes`](guide::bytes) from chunks and pool objects), `allocator-api2`
//! ([collections](guide::collections) in an arena or in the heap), `hardened` (every free is checked in release builds
//! too), `cli` (the `hugearena` command), `preload` (for `examples/preload.rs`, the heap as the malloc of any program).
//!
//! Without huge pages everything works on transparent huge pages or base pages, in that order; no fallback is
//! silent. There is no SIGBUS: memory is reserved when it is mapped and proved present before it is handed out.
//!
//! # When not to use it
//!
//! On kernels other than Linux and on 32-bit machines it does not compile. Do not use it where memory has to go
//! back to the system quickly (the heap keeps what it has until [`HugeAlloc::trim`]), in containers of a few
//! MiB (the grain is 2 MiB), or to stop an attacker: debug builds and the feature `hardened` abort on wrong frees,
//! but it is not a hardened allocator. Huge pages that a child of fork(2) or its parent writes to while both have them are
//! copied to others of the pool; where that is exhausted the kernel kills the child ([`HugeAlloc`] has the details).
//! [`HugeAlloc::spare_pages`] keeps some for it, and [`HugeAlloc::fork_unsafe`] says what becomes of pages of 1 GiB.
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | page | a kernel page of some [`PageSize`] |
//! | supply | how many huge pages the kernel has free, reserved or allowed here |
//! | backing | where an arena's pages come from: memfd, hugetlbfs file, anonymous memory |
//! | mapping | a backing in our address space |
//! | arena | a mapping cut into chunks that are claimed and released |
//! | chunk | one or more contiguous huge pages claimed by somebody |
//! | first touch | the caller's hint: where, and how much, it will touch first |
//! | pool | objects of one size in a chunk, for data planes |
//! | span | a run of equal blocks inside the heap |
//! | pace | bytes cleared or copied between two reschedule points, and what happens there |
//! | fresh, clean, dirty | never handed out since the kernel zeroed it; zeroed by us; contents unknown |
//!
//! The layers, a walk of one allocation through them and the invariants are in ARCHITECTURE.md.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("hugearena is for 64-bit Linux: hugetlbfs, memfd and MADV_POPULATE_WRITE are Linux's");

pub mod arena;
pub mod backing;
pub mod doctor;
pub mod error;
pub mod guide;
mod heap;
pub mod iova;
mod mapping;
pub mod memops;
pub mod numa;
mod page_size;
pub mod pool;
pub mod ring;
pub mod supply;
mod sync;
mod sys;

#[cfg(doc)]
#[doc = include_str!("heap/suites.md")]
pub mod suites {}

pub use arena::{Arena, ArenaBuilder, Chunk, Populate, PopulateProgress, Worker, ZeroingChunk};
pub use error::{Error, Result};
pub use heap::{HeapStats, HeldPages, HugeAlloc};
pub use memops::FirstTouch;
pub use numa::Placement;
pub use page_size::{PageSize, ParsePageSizeError};
pub use pool::{Pool, PoolBox, PoolCache};
