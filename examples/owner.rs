//! Owns a named arena until standard input ends, with some of its pages claimed: something for `hugearena inspect` and
//! `hugearena map` to look at.
//!
//! ```text
//! hugearena create packets 256M
//! cargo run --example owner -- packets     # and in another terminal: hugearena map packets
//! ```

#![allow(unsafe_code)]

use std::io::Read;

use hugearena::{Arena, Chunk};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).ok_or("wanted: the name of an arena that exists")?;
    let arena = Arena::builder().name(&name).open()?;
    println!("{}", arena.named().expect("it has a name"));
    // Three of four stay claimed; the others are dirty, for something was written to them.
    let mut chunks: Vec<Chunk> = (0..arena.stats().pages / 4).filter_map(|_| arena.claim(1)).collect();
    for chunk in &mut chunks {
        // SAFETY: no peer has been told of the chunk.
        unsafe { chunk.slice_mut()[0] = 1 };
    }
    chunks.truncate(chunks.len() * 3 / 4);
    println!("{}", arena.stats());
    println!("owned until standard input ends");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
