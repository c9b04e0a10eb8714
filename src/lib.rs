//! Huge-page memory for Rust data planes (skeleton).
pub mod error;
mod page_size;
#[allow(unsafe_code, dead_code)]
mod sys;
pub use error::{Error, Result};
pub use page_size::{PageSize, ParsePageSizeError};
mod heap_stub;
pub use heap_stub::{Arena, Builder, Chunk, FirstTouch, HeapStats, HugeAlloc};
