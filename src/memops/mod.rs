//! Clearing and copying memory: order x kernel x pace.
mod order;
mod pace;
pub use order::{Batch, Batches, FirstTouch, Order};
pub use pace::{Batched, Callback, DEFAULT_BATCH_BYTES, Nothing, Pace, Progress, Yield};
