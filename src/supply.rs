//! stub
use crate::{error::{Errno, Limit}, page_size::PageSize};
use std::path::Path;
pub(crate) fn available_pages_now(_s: PageSize) -> Option<u64> { 
  let mut b=[0u8;32];
  let t = crate::sys::file::read_small(c"/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", &mut b).ok()?;
  Some(t.iter().take_while(|c| c.is_ascii_digit()).fold(0, |a,c| a*10 + u64::from(c-b'0')))
}
pub(crate) fn transparent_huge_now() -> bool { true }
pub(crate) fn diagnose(_e: Errno, _s: PageSize, _n: u64, _m: Option<&Path>) -> Option<Limit> { None }
