//! The XDP program that sends our packets to the socket, and all others to the kernel: assembled by hand, loaded by
//! bpf(2). In C:
//!
//! ```c
//! int redirect(struct xdp_md *packet) {
//!     struct ethhdr *header = (void *)(long)packet->data;
//!     if ((void *)(header + 1) > (void *)(long)packet->data_end || header->h_proto != htons(ETHERTYPE))
//!         return XDP_PASS;
//!     return bpf_redirect_map(&sockets, packet->rx_queue_index, XDP_PASS);
//! }
//! ```
//!
//! Sources: bpf(2); Linux, `Documentation/bpf/standardization/instruction-set.rst`, `include/uapi/linux/bpf.h`.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

// Of <linux/bpf.h>.
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const FLAG_DRIVER_MODE: u32 = 1 << 2;
const PSEUDO_MAP_FD: u8 = 1;
const REDIRECT_MAP: u32 = 51;
const XDP_PASS: u32 = 2;

/// The program on an interface; it goes when this is dropped, or the process ends.
#[derive(Debug)]
pub struct Redirection {
    _link: OwnedFd,
    _program: OwnedFd,
    _sockets: OwnedFd,
}

impl Redirection {
    /// Packets of `ethertype` that arrive on queue 0 of the interface go to `socket`, an AF_XDP socket bound there.
    ///
    /// # Errors
    ///
    /// `EPERM` without `CAP_NET_ADMIN` and `CAP_BPF`; `EBUSY` when the interface has a program.
    pub fn attach(interface: u32, ethertype: u16, socket: RawFd) -> io::Result<Redirection> {
        let sockets = owned(bpf(MAP_CREATE, &mut [pair(MAP_TYPE_XSKMAP, 4), pair(4, 1)])?);
        let (queue, value) = (0u32, socket);
        let mut update = [pair(sockets.as_raw_fd() as u32, 0), address(&queue), address(&value), 0];
        bpf(MAP_UPDATE_ELEM, &mut update)?;
        let steps = program(ethertype, sockets.as_raw_fd());
        let license = c"MIT OR Apache-2.0";
        let mut load = [pair(PROG_TYPE_XDP, steps.len() as u32), address(&steps), license.as_ptr().addr() as u64, 0, 0];
        let program = owned(bpf(PROG_LOAD, &mut load)?);
        let mut link = [pair(program.as_raw_fd() as u32, interface), pair(ATTACH_XDP, FLAG_DRIVER_MODE)];
        Ok(Redirection { _link: owned(bpf(LINK_CREATE, &mut link)?), _program: program, _sockets: sockets })
    }
}

/// One instruction: opcode, registers, jump offset, immediate.
fn step(opcode: u8, to: u8, from: u8, offset: i16, immediate: u32) -> u64 {
    u64::from(opcode) | u64::from(from << 4 | to) << 8 | u64::from(offset as u16) << 16 | u64::from(immediate) << 32
}

fn program(ethertype: u16, sockets: RawFd) -> [u64; 15] {
    const LOAD_WORD: u8 = 0x61; // to = *(u32 *)(from + offset)
    const LOAD_HALF: u8 = 0x69; // to = *(u16 *)(from + offset)
    const LOAD_MAP: u8 = 0x18; // to = a 64-bit constant, in two instructions
    const COPY: u8 = 0xbf; // to = from
    const SET: u8 = 0xb7; // to = immediate
    const ADD: u8 = 0x07; // to += immediate
    const IF_GREATER: u8 = 0x2d; // if to > from goto offset
    const IF_UNEQUAL: u8 = 0x55; // if to != immediate goto offset
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    [
        step(LOAD_WORD, 2, 1, 0, 0),                             //  0  r2 = packet->data
        step(LOAD_WORD, 3, 1, 4, 0),                             //  1  r3 = packet->data_end
        step(COPY, 4, 2, 0, 0),                                  //  2  r4 = r2
        step(ADD, 4, 0, 0, 14),                                  //  3  r4 += sizeof(struct ethhdr)
        step(IF_GREATER, 4, 3, 8, 0),                            //  4  if r4 > r3 goto 13
        step(LOAD_HALF, 4, 2, 12, 0),                            //  5  r4 = header->h_proto
        step(IF_UNEQUAL, 4, 0, 6, u32::from(ethertype.to_be())), //  6  if r4 != htons(ETHERTYPE) goto 13
        step(LOAD_WORD, 2, 1, 16, 0),                            //  7  r2 = packet->rx_queue_index
        step(LOAD_MAP, 1, PSEUDO_MAP_FD, 0, sockets as u32),     //  8  r1 = &sockets
        0,                                                       //  9
        step(SET, 3, 0, 0, XDP_PASS),                            // 10  r3 = XDP_PASS, if there is no socket
        step(CALL, 0, 0, 0, REDIRECT_MAP),                       // 11  r0 = bpf_redirect_map(r1, r2, r3)
        step(EXIT, 0, 0, 0, 0),                                  // 12
        step(SET, 0, 0, 0, XDP_PASS),                            // 13  r0 = XDP_PASS
        step(EXIT, 0, 0, 0, 0),                                  // 14
    ]
}

/// Two 32-bit fields of the call's argument, the first one first.
fn pair(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

fn address<T>(of: &T) -> u64 {
    std::ptr::from_ref(of).expose_provenance() as u64
}

/// bpf(2), whose argument is a struct of 32-bit and 64-bit fields; what is left out is 0.
fn bpf(command: libc::c_int, argument: &mut [u64]) -> io::Result<libc::c_int> {
    // SAFETY: the kernel reads as many bytes as it is told, and follows the addresses in them, which are those of
    // variables that live through the call. None of the commands used here writes to this process's memory.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, argument.as_mut_ptr(), size_of_val(argument)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
}

fn owned(fd: libc::c_int) -> OwnedFd {
    // SAFETY: a fresh descriptor of bpf(2), close-on-exec, that nobody else owns.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
