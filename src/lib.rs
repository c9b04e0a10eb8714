//! Huge-page memory for Rust data planes (skeleton).
pub mod error;
pub mod memops;
mod page_size;
#[allow(unsafe_code, dead_code)]
mod sys;
pub use error::{Error, Result};
pub use page_size::{PageSize, ParsePageSizeError};
