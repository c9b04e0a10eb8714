//! Huge-page memory for Rust data planes (skeleton).
pub mod arena;
pub mod backing;
pub mod error;
mod heap;
mod mapping;
pub mod memops;
mod page_size;
pub mod supply;
#[allow(unsafe_code, dead_code)]
mod sys;
pub use arena::{Arena, ArenaBuilder, Chunk, Populate};
pub use error::{Error, Result};
pub use heap::{HeapStats, HugeAlloc};
pub use memops::FirstTouch;
pub use page_size::{PageSize, ParsePageSizeError};
