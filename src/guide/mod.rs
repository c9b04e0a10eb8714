//! Guides: an arena in other people's programs and devices, a page each. There is no code in here.

#[doc = include_str!("vhost_user.md")]
pub mod vhost_user {}
