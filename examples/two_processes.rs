//! Two processes and one arena: the parent owns it, the child gets it over a Unix socket, and each survives the other.
//!
//! ```text
//! cargo run --example two_processes
//! ```
//!
//! Needs no privileges; on 2 MiB pages where the pool has some, else on base pages.
#![allow(unsafe_code)]

use std::error::Error;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};

use hugearena::arena::View;
use hugearena::{Arena, Chunk, FirstTouch};

const CHILD: &str = "--child";

/// What the two tell each other: where something is, as the owner counts.
struct Message {
    offset: u64,
    len: u64,
}

impl Message {
    fn send(&self, mut socket: &UnixStream) -> std::io::Result<()> {
        socket.write_all(&[self.offset.to_le_bytes(), self.len.to_le_bytes()].concat())
    }

    fn receive(mut socket: &UnixStream) -> std::io::Result<Message> {
        let mut bytes = [[0; 8]; 2];
        bytes.iter_mut().try_for_each(|part| socket.read_exact(part))?;
        let [offset, len] = bytes.map(u64::from_le_bytes);
        Ok(Message { offset, len })
    }
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    if std::env::args().nth(1).as_deref() == Some(CHILD) {
        return child();
    }
    the_peer_dies()?;
    the_owner_dies()?;
    Ok(ExitCode::SUCCESS)
}

/// An arena, and a page of it with a text.
fn owner(text: &str) -> Result<(Arena, Chunk), Box<dyn Error>> {
    let arena = Arena::builder().capacity(8 << 20).open()?;
    let mut chunk = arena.claim_zeroed(1, FirstTouch::at(0, text.len())).ok_or("all pages are free")?;
    // SAFETY: nobody else has the arena yet.
    unsafe { chunk.slice_mut()[..text.len()].copy_from_slice(text.as_bytes()) };
    Ok((arena, chunk))
}

/// Starts this program again; its standard input is the other end of the socket.
fn start_child(arena: &Arena, chunk: &Chunk, len: usize) -> Result<(UnixStream, std::process::Child), Box<dyn Error>> {
    let (socket, theirs) = UnixStream::pair()?;
    let stdin = Stdio::from(OwnedFd::from(theirs));
    let child = Command::new(std::env::current_exe()?).arg(CHILD).stdin(stdin).spawn()?;
    arena.share(&socket)?;
    Message { offset: chunk.offset() as u64, len: len as u64 }.send(&socket)?;
    Ok((socket, child))
}

fn the_peer_dies() -> Result<(), Box<dyn Error>> {
    let text = "written by the owner";
    let (arena, chunk) = owner(text)?;
    println!("owner {}: {}", std::process::id(), arena.obtained());
    let (socket, mut child) = start_child(&arena, &chunk, text.len())?;
    Message::receive(&socket)?; // the child has answered in place
    child.kill()?;
    child.wait()?;
    // SAFETY: the peer is gone.
    let answer = unsafe { std::slice::from_raw_parts(chunk.as_ptr().as_ptr(), text.len()) };
    println!("owner: the peer was killed; it left {:?}", String::from_utf8_lossy(answer));
    // The owner holds the chunk until it knows that no peer uses it; then it can go to somebody else.
    drop(chunk);
    assert_eq!(arena.stats().claimed, 0);
    Ok(())
}

fn the_owner_dies() -> Result<(), Box<dyn Error>> {
    let text = "outlives its owner";
    let (arena, chunk) = owner(text)?;
    let (socket, mut child) = start_child(&arena, &chunk, text.len())?;
    Message::receive(&socket)?;
    // As good as dead: the arena is gone here, and the socket closed.
    drop((chunk, arena, socket));
    child.wait()?;
    Ok(())
}

fn child() -> Result<ExitCode, Box<dyn Error>> {
    // SAFETY: standard input is the socket that the parent made, and nothing else here uses it.
    let socket = unsafe { UnixStream::from_raw_fd(0) };
    let view = View::receive(&socket)?;
    println!("peer {}: {} bytes on {} pages, {}", std::process::id(), view.len(), view.page_size(), view.attachment());
    let message = Message::receive(&socket)?;
    // Numbers from another process: `get` checks them.
    let range = usize::try_from(message.offset).ok().zip(usize::try_from(message.len).ok());
    let mut bytes = range.and_then(|(offset, len)| view.get(offset, len)).ok_or("outside the arena")?;
    // SAFETY: the owner holds the chunk and waits for our answer.
    let text = unsafe { bytes.as_mut() };
    println!("peer: {:?}", String::from_utf8_lossy(text));
    text.make_ascii_uppercase();
    message.send(&socket)?;
    // Until the owner is gone, or ends us.
    if Message::receive(&socket).is_err() {
        // SAFETY: the owner is gone; the memory is not.
        let text = unsafe { bytes.as_ref() };
        println!("peer: the owner is gone, and {:?} is still here", String::from_utf8_lossy(text));
    }
    Ok(ExitCode::SUCCESS)
}
