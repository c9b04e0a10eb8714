//! A pool as the UMEM of an AF_XDP socket, by the code of the example: real packets over a veth pair.

#![allow(unsafe_code)]

#[allow(dead_code)]
#[path = "../examples/af_xdp/bpf.rs"]
mod bpf;
#[path = "../examples/af_xdp/echo.rs"]
mod echo;
#[path = "../examples/af_xdp/frames.rs"]
mod frames;
#[path = "../examples/af_xdp/network.rs"]
mod network;
mod support;
#[path = "../examples/af_xdp/traffic.rs"]
mod traffic;

use std::process::Command;

use traffic::Options;

use support::machine::is_root;
use support::{for_each_page_size, skip, skip_program};

/// Why there can be no such socket here, if so.
fn missing() -> Option<String> {
    if !is_root() {
        return Some("not root".into());
    }
    // SAFETY: no pointers.
    let socket = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Some(format!("AF_XDP sockets: {}", std::io::Error::last_os_error()));
    }
    // SAFETY: the descriptor opened above.
    unsafe { libc::close(socket) };
    // A namespace is a thread's, and goes with it.
    let namespace = std::thread::spawn(network::enter_own_namespace).join().unwrap();
    namespace.err().map(|error| format!("network namespaces: {error}"))
}

#[test]
fn every_frame_comes_back_as_it_was_sent() {
    if let Err(error) = Command::new("ip").arg("-V").output() {
        return skip_program("ip", "AF_XDP", &format!("ip(8), of iproute2: {error}"));
    }
    if let Some(reason) = missing() {
        return skip("AF_XDP", &reason);
    }
    const PACKETS: u64 = 10_000;
    for_each_page_size(2, |size, pages| {
        let options =
            Options { packets: PACKETS, page_size: size, umem_bytes: (4 << 20).max(pages.min(1) * size.bytes()) };
        let report = traffic::run(&options).unwrap();
        eprintln!("{report}");
        assert_eq!(report.sent, PACKETS);
        assert!(report.is_sound(), "{report:?}");
        assert!(report.echoed > PACKETS / 2, "{report:?}");
        // Threads of the harness fault too; a page for each frame would be thousands.
        assert!(report.steady_faults < PACKETS / 10, "{report:?}");
    });
}
