//! Huge-page memory for Rust data planes (skeleton).
pub mod backing;
pub mod error;
mod heap;
mod mapping;
mod page_size;
pub mod supply;
#[allow(unsafe_code, dead_code)]
mod sys;
pub use error::{Error, Result};
pub use heap::{HeapStats, HugeAlloc};
pub use memops::FirstTouch;
pub use page_size::{PageSize, ParsePageSizeError};
